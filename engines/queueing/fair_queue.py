"""The requests in front of an engine, which of them is served next, and when.

Lower priorities are served first. Within a priority the tenants share: each has a counter of
the work done for it, and the tenant with the least goes first (the virtual token counter of
"Fairness in Serving Large Language Models", OSDI 2024). own_order.py says which of its items does.
A tenant with nothing waiting before starts at the present turn: idling saves up no service,
and having been alone costs none. One turn in OLDEST_EVERY goes to the request that waits longest,
so that even the last priority never starves.

How long a new request would wait follows from the pace: the work that left the queue over the time
in which requests had to wait, both fading. Work is counted in tokens; prefill, decoding, memory and
other workers all show in it. The pace is wrong when the kind of requests changes. So an expected
wait is never more than twice what the oldest request has waited: a burst is not refused for what
came before it.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import insort
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from typing import Final, Generic, TypeVar

from engines.base import NO_WAIT, EngineRequest, ExpectedWait, OnEntered, Outcome, Receive, ignore
from engines.queueing.own_order import ByArrival

T = TypeVar("T")  # a request in the engine's own form

OLDEST_EVERY: Final = 16
GENERATED_COST: Final = 2  # of a generated token, where a computed one of the prompt costs 1
MOST_COUNTERS: Final = 1024  # of tenants that wait for nothing
_TENANT_SHARE: Final = 7  # a named tenant may fill 7/8 of an otherwise empty queue
Item = TypeVar("Item", bound=Hashable)
_MEMORY_S: Final = 10.0  # after which what was seen counts a third
_DOUBT: Final = 1.25  # factor by which a wait may be shorter or longer
_MOST_TIMES_SEEN: Final = 2.0
_MOST_RETRY_S: Final = 60


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One request from its arrival to its end."""

    _on_outcome: Callable[[Entry[T], Outcome], None]
    request: EngineRequest
    run: T
    receive: Receive
    arrived_s: float
    on_entered: OnEntered = ignore  # called when the engine takes it
    queued_s: float = field(default_factory=lambda: time.monotonic())  # it waits since then
    too_late: asyncio.TimerHandle | None = None  # while it waits and may not for ever
    num_expected_tokens: int = 0  # to be computed before the first new one, without cached ones
    num_generated: int = 0
    work: float = 0.0  # what it is expected to cost
    is_long: bool = False  # the engine computes its prompt in more than one step
    is_open: bool = True  # it has not ended
    is_inside: bool = False  # the engine has it
    has_begun: bool = False  # the engine has given a token of it

    @property
    def num_known_tokens(self) -> int:
        """Tokens to be computed before the first new one."""
        return len(self.request.prompt_token_ids) + len(self.request.generated_token_ids)

    def take(self, outcome: Outcome) -> None:
        """Hand one outcome of the engine to the entry's owner, while the entry is open."""
        if self.is_open:
            self._on_outcome(self, outcome)

    def end(self) -> None:
        """Close the entry and drop its references to the run and the receiver.

        Else each request would be a reference cycle, and a thousand that end together a garbage
        collection for which all streams wait.
        """
        self.is_open = False
        self.stop_timer()
        del self.run, self.receive, self.on_entered

    def stop_timer(self) -> None:
        """Cancel the timer that would end the entry for having waited too long."""
        if self.too_late is not None:
            self.too_late.cancel()
            self.too_late = None


class InFlightPrompts:
    """Counts requests that an engine has and that have no token yet, by priority and length."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, bool], tuple[int, int]] = {}  # requests, tokens of prompts

    def of(self, priority: int, *, is_long: bool) -> tuple[int, int]:
        """How many such requests, and tokens of them, are as urgent as this priority or more."""
        counts = [c for (p, kind), c in self._counts.items() if p <= priority and kind == is_long]
        return sum(count[0] for count in counts), sum(count[1] for count in counts)

    def count(self, priority: int, num_requests: int, num_tokens: int, is_long: bool) -> None:
        requests, tokens = self._counts.pop((priority, is_long), (0, 0))
        if requests + num_requests:
            self._counts[priority, is_long] = (requests + num_requests, tokens + num_tokens)


@dataclass(slots=True)
class _Lane(Generic[Item]):
    """All items of one priority; no tenant is kept without an item."""

    restored: list[tuple[int, Item]] = field(default_factory=list)  # by rank
    tenants: dict[str, ByArrival[Item]] = field(default_factory=dict)


class FairQueue(Generic[Item]):
    """A queue by priority, then fair between tenants, then in a tenant's own order; an item is in
    it at most once."""

    def __init__(self, own_order: Callable[[], ByArrival[Item]] = ByArrival) -> None:
        self._own_order = own_order
        self._lanes: dict[int, _Lane[Item]] = {}
        self._places: dict[Item, tuple[int, str | None]] = {}  # priority, tenant; None: restored
        self._num_waiting: dict[str, int] = {}  # never 0
        self._costs: dict[str, float] = {}  # each tenant's counter, where it is above the turn
        self._turn = 0.0  # the least counter at the last regular turn; never falls
        self._arrivals = count()
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Item]:
        """By priority; within one the restored ones, then by arrival."""
        for _, lane in sorted(self._lanes.items(), key=itemgetter(0)):
            yield from (item for _, item in lane.restored)
            arrivals = [pair for own in lane.tenants.values() for pair in own.arrivals()]
            yield from (item for _, item in sorted(arrivals, key=itemgetter(0)))

    def has_room(self, tenant: str, max_items: int) -> bool:
        """Whether one more may wait; a named tenant leaves some room to the others."""
        num_free = max_items - len(self)
        if tenant:
            return self._num_waiting.get(tenant, 0) < _TENANT_SHARE * num_free
        return num_free > 0

    def add(
        self,
        item: Item,
        priority: int,
        tenant: str,
        *,
        num_tokens: int = 1,
        is_long: bool = False,
        work: float = 0.0,
    ) -> None:
        """Add a new item; `num_tokens` are to be computed before its first new one."""
        if tenant not in self._num_waiting:
            if len(self._costs) > MOST_COUNTERS + len(self._num_waiting):
                self._forget_half()
            self._costs[tenant] = max(self._cost(tenant), self._turn)
        self._num_waiting[tenant] = self._num_waiting.get(tenant, 0) + 1
        tenants = self._lane(priority).tenants
        if tenant not in tenants:
            tenants[tenant] = self._own_order()
        tenants[tenant].add(item, next(self._arrivals), num_tokens, work, is_long=is_long)
        self._places[item] = priority, tenant

    def restore(self, item: Item, priority: int, rank: int) -> None:
        """Put back an item that was being served, before all new ones of its priority."""
        insort(self._lane(priority).restored, (rank, item), key=itemgetter(0))
        self._places[item] = priority, None

    def charge(self, tenant: str, cost: float) -> None:
        """Count work done for a tenant, whether or not more of it waits."""
        self._costs[tenant] = self._costs.get(tenant, self._turn) + cost  # for every token

    def head(self) -> Item:
        """The item that is next; the same until something is added, discarded, taken or charged."""
        head = self._head((False, True))
        assert head is not None
        return head

    def short_head(self) -> Item | None:
        return self._head((False,))

    def urgent_head(self) -> Item | None:
        """The next of those that are at least as urgent as usual, whosever turn it is."""
        return self._first(0, (False, True))

    def take(self, passing: Item | None = None) -> Item:
        """Remove the head and return it; or the item that short_head() or urgent_head() gave, which
        passes a head that cannot be served."""
        item = self.head() if passing is None else passing
        priority, tenant = self._places[item]
        if tenant is not None and not self._is_turn_of_oldest():
            self._turn = max(self._turn, self._cost(tenant))
        self._num_taken += 1
        if tenant is not None and passing is None:
            self._lanes[priority].tenants[tenant].note_taken(item)
        self.discard(item)
        return item

    def work_before(self, tenant: str, priority: int, work: float, num_tokens: int = 1) -> float:
        """The work that is served before a new item of so much.

        All of more urgent priorities; of the same, the tenant's own as far as it goes first, and of
        each other tenant no more than that and the item.
        """
        more_urgent = (lane for p, lane in self._lanes.items() if p < priority)
        urgent = sum(own.work for lane in more_urgent for own in lane.tenants.values())
        tenants = self._lanes.get(priority, _Lane[Item]()).tenants
        own = tenants[tenant].work_before(num_tokens, work) if tenant in tenants else 0.0
        others = sum(min(of.work, own + work) for name, of in tenants.items() if name != tenant)
        return urgent + own + others

    def busiest_tenants(self, most: int) -> list[str]:
        return sorted(self._num_waiting, key=lambda name: -self._num_waiting[name])[:most]

    def oldest(self) -> Item:
        oldest = self._oldest((False, True))
        assert oldest is not None
        return oldest

    def discard(self, item: Item) -> None:
        if item not in self._places:
            return
        priority, tenant = self._places.pop(item)
        lane = self._lanes[priority]
        if tenant is None:
            lane.restored = [entry for entry in lane.restored if entry[1] is not item]
        else:
            self._discard_new(lane, tenant, item)
        if not lane.restored and not lane.tenants:
            del self._lanes[priority]

    def _discard_new(self, lane: _Lane[Item], tenant: str, item: Item) -> None:
        lane.tenants[tenant].discard(item)
        if not len(lane.tenants[tenant]):
            del lane.tenants[tenant]
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
        if not self._num_waiting:  # the counters that say more than the turn are all that matter
            self._costs = {t: cost for t, cost in self._costs.items() if cost > self._turn}

    def _forget_half(self) -> None:
        """Bring the turn to the counter in the middle of those of tenants that wait for nothing."""
        waiting = self._num_waiting
        idle = sorted(cost for tenant, cost in self._costs.items() if tenant not in waiting)
        self._turn = turn = max(self._turn, idle[len(idle) // 2])
        self._costs = {t: c for t, c in self._costs.items() if c > turn or t in waiting}

    def _lane(self, priority: int) -> _Lane[Item]:
        return self._lanes.setdefault(priority, _Lane())

    def _cost(self, tenant: str) -> float:
        return self._costs.get(tenant, self._turn)

    def _is_turn_of_oldest(self) -> bool:
        return self._num_taken % OLDEST_EVERY == OLDEST_EVERY - 1

    def _head(self, kinds: Collection[bool]) -> Item | None:
        """The next item of these kinds: of short ones, of long ones."""
        if self._is_turn_of_oldest():
            return self._oldest(kinds)
        return self._first(math.inf, kinds)

    def _first(self, least_urgent: float, kinds: Collection[bool]) -> Item | None:
        for priority in sorted(each for each in self._lanes if each <= least_urgent):
            lane = self._lanes[priority]
            if lane.restored:
                return lane.restored[0][1]
            own = self._next_tenant(lane, kinds)
            if own is not None:
                return own.head(kinds)
        return None

    def _next_tenant(self, lane: _Lane[Item], kinds: Collection[bool]) -> ByArrival[Item] | None:
        """The one with the least work done for it, and of equals the one with the oldest item."""
        waiting = [
            (self._cost(name), arrival, own)
            for name, own in lane.tenants.items()
            if (arrival := own.first_arrival(kinds)) is not None
        ]
        return min(waiting, key=itemgetter(0, 1))[2] if waiting else None

    def _oldest(self, kinds: Collection[bool]) -> Item | None:
        """The restored were served before any of the new came to be."""
        restored = [lane.restored[0] for lane in self._lanes.values() if lane.restored]
        if restored:
            return min(restored, key=itemgetter(0))[1]
        waiting = [
            (arrival, own)
            for lane in self._lanes.values()
            for own in lane.tenants.values()
            if (arrival := own.first_arrival(kinds)) is not None
        ]
        return min(waiting, key=itemgetter(0))[1].oldest(kinds) if waiting else None


def retry_after_s(wait: ExpectedWait, limit_s: float) -> int:
    """Seconds after which a request would be served within the limit, if no others come."""
    return min(max(math.ceil(_DOUBT * wait.likely_s - limit_s), 1), _MOST_RETRY_S)


class Pace:
    """Work per second of a queue; `now_s` never falls."""

    def __init__(self) -> None:
        self._work = self._busy_s = 0.0  # fading sums
        self._now_s = -math.inf
        self._is_busy = False

    def advance(self, now_s: float, *, is_busy: bool) -> None:
        """Note the time, and whether from now on a request would have to wait."""
        if self._now_s > -math.inf:
            passed_s = now_s - self._now_s
            left = math.exp(-passed_s / _MEMORY_S)
            self._work *= left
            self._busy_s = self._busy_s * left + (passed_s if self._is_busy else 0.0)
        self._now_s, self._is_busy = now_s, is_busy

    def note(self, work: float) -> None:
        self._work += work

    def expected(self, work: float, oldest_s: float) -> ExpectedWait:
        """How long work takes to leave the queue, if the oldest has waited `oldest_s`."""
        if not oldest_s or not work:
            return NO_WAIT
        most_s = _MOST_TIMES_SEEN * oldest_s
        if not self._work:
            return ExpectedWait(most_s, most_s)
        seconds = work * self._busy_s / self._work
        return ExpectedWait(seconds, min(seconds / _DOUBT, most_s))


class Running:
    """A fading mean of a ratio of counts."""

    def __init__(self, share: float, weight: float, memory: float) -> None:
        """`share` is assumed with so much weight; each count leaves `memory` of those before."""
        self._part, self._whole, self._memory = share * weight, weight, memory

    @property
    def value(self) -> float:
        return self._part / self._whole

    def note(self, part: float, whole: float) -> None:
        self._part = self._memory * self._part + part
        self._whole = self._memory * self._whole + whole
