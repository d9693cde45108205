"""The waiting requests, and which of them is served next.

Lower priorities are served first. Within a priority the tenants share: each has a counter of
the work done for it, and the tenant with the least goes first, its own items in order of
arrival (the virtual token counter of "Fairness in Serving Large Language Models", OSDI 2024).
A tenant with nothing waiting before starts at the present turn: idling saves up no service,
and having been alone costs none. One turn in OLDEST_EVERY goes to the request that waits longest,
so
that even the last priority never starves.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

OLDEST_EVERY: Final = 16
GENERATED_COST: Final = 2  # of a generated token, where a computed one of the prompt costs 1
_TENANT_SHARE: Final = 7  # a named tenant may fill 7/8 of an otherwise empty queue

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class _Lane(Generic[T]):
    """All items of one priority; no tenant is kept without an item."""

    restored: list[tuple[int, T]] = field(default_factory=list)  # by rank
    # By tenant and by whether they are long: arrival numbers, in order.
    tenants: dict[tuple[str, bool], dict[T, int]] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)  # of each tenant


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an item waits."""

    priority: int
    tenant: str | None  # None: it was restored
    is_long: bool = False
    work: float = 0.0


class FairQueue(Generic[T]):
    """A queue by priority, then fair between tenants, then by arrival; an item is in it at most
    once."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane[T]] = {}
        self._places: dict[T, _Place] = {}
        self._num_waiting: dict[str, int] = {}  # never 0
        self._costs: dict[str, float] = {}  # each tenant's counter, where it is above the turn
        self._turn = 0.0  # the least counter at the last regular turn; never falls
        self._arrivals = count()
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        """By priority; within one the restored ones, then by arrival."""
        for _, lane in sorted(self._lanes.items(), key=itemgetter(0)):
            yield from (item for _, item in lane.restored)
            arrivals = {item: n for items in lane.tenants.values() for item, n in items.items()}
            yield from sorted(arrivals, key=arrivals.__getitem__)

    def has_room(self, tenant: str, max_items: int) -> bool:
        """Whether one more may wait; a named tenant leaves some room to the others."""
        num_free = max_items - len(self)
        if tenant:
            return self._num_waiting.get(tenant, 0) < _TENANT_SHARE * num_free
        return num_free > 0

    def add(
        self, item: T, priority: int, tenant: str, *, is_long: bool = False, work: float = 0.0
    ) -> None:
        """Add an item behind those of its tenant and priority; `work`: for work_before()."""
        if tenant not in self._num_waiting:
            self._costs[tenant] = max(self._cost(tenant), self._turn)
        self._num_waiting[tenant] = self._num_waiting.get(tenant, 0) + 1
        lane = self._lane(priority)
        lane.tenants.setdefault((tenant, is_long), {})[item] = next(self._arrivals)
        lane.work[tenant] = lane.work.get(tenant, 0.0) + work
        self._places[item] = _Place(priority, tenant, is_long, work)

    def restore(self, item: T, priority: int, rank: int) -> None:
        """Put back an item that was being served, before all new ones of its priority."""
        insort(self._lane(priority).restored, (rank, item), key=itemgetter(0))
        self._places[item] = _Place(priority, None)

    def charge(self, tenant: str, cost: float) -> None:
        """Count work done for a tenant, whether or not more of it waits."""
        self._costs[tenant] = self._costs.get(tenant, self._turn) + cost  # for every token

    def head(self) -> T:
        """The item that is next; the same until something is added, discarded, taken or charged."""
        head = self._head((False, True))
        assert head is not None
        return head

    def short_head(self) -> T | None:
        """The next item that is not a long one."""
        return self._head((False,))

    def take(self, item: T | None = None) -> T:
        """Remove the head, or the item that short_head() gave, and return it."""
        item = self.head() if item is None else item
        tenant = self._places[item].tenant
        if tenant is not None and not self._is_turn_of_oldest():
            self._turn = max(self._turn, self._cost(tenant))
        self._num_taken += 1
        self.discard(item)
        return item

    def work_before(self, tenant: str, priority: int, work: float) -> float:
        """The work that is served before a new item of so much.

        All of more urgent priorities; of the same, the tenant's own, and of each other tenant no
        more than that and the item.
        """
        urgent = sum(sum(lane.work.values()) for p, lane in self._lanes.items() if p < priority)
        lane = self._lanes.get(priority, _Lane())
        own = lane.work.get(tenant, 0.0)
        others = sum(min(of, own + work) for name, of in lane.work.items() if name != tenant)
        return urgent + own + others

    def busiest_tenants(self, most: int) -> list[str]:
        return sorted(self._num_waiting, key=lambda name: -self._num_waiting[name])[:most]

    def oldest(self) -> T:
        oldest = self._oldest((False, True))
        assert oldest is not None
        return oldest

    def discard(self, item: T) -> None:
        if item not in self._places:
            return
        place = self._places.pop(item)
        lane = self._lanes[place.priority]
        if place.tenant is None:
            lane.restored = [entry for entry in lane.restored if entry[1] is not item]
        else:
            self._discard_new(lane, place.tenant, place, item)
        if not lane.restored and not lane.tenants:
            del self._lanes[place.priority]

    def _discard_new(self, lane: _Lane[T], tenant: str, place: _Place, item: T) -> None:
        key = (tenant, place.is_long)
        del lane.tenants[key][item]
        if not lane.tenants[key]:
            del lane.tenants[key]
        lane.work[tenant] -= place.work
        if (tenant, not place.is_long) not in lane.tenants and key not in lane.tenants:
            del lane.work[tenant]
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
        if not self._num_waiting:  # the counters that say more than the turn are all that matter
            self._costs = {t: cost for t, cost in self._costs.items() if cost > self._turn}

    def _lane(self, priority: int) -> _Lane[T]:
        return self._lanes.setdefault(priority, _Lane())

    def _cost(self, tenant: str) -> float:
        return self._costs.get(tenant, self._turn)

    def _is_turn_of_oldest(self) -> bool:
        return self._num_taken % OLDEST_EVERY == OLDEST_EVERY - 1

    def _head(self, kinds: Collection[bool]) -> T | None:
        """The next item of these kinds: of short ones, of long ones."""
        if self._is_turn_of_oldest():
            return self._oldest(kinds)
        for priority in sorted(self._lanes):
            lane = self._lanes[priority]
            if lane.restored:
                return lane.restored[0][1]
            keys = [key for key in lane.tenants if key[1] in kinds]
            if keys:
                tenants = lane.tenants
                first = min(keys, key=lambda k: (self._cost(k[0]), _first_arrival(tenants[k])))
                return _first(tenants[first])
        return None

    def _oldest(self, kinds: Collection[bool]) -> T | None:
        """The restored were served before any of the new came to be."""
        restored = [lane.restored[0] for lane in self._lanes.values() if lane.restored]
        if restored:
            return min(restored, key=itemgetter(0))[1]
        waiting = [
            items
            for lane in self._lanes.values()
            for key, items in lane.tenants.items()
            if key[1] in kinds
        ]
        return _first(min(waiting, key=_first_arrival)) if waiting else None


def _first(items: dict[T, int]) -> T:
    return next(iter(items))


def _first_arrival(items: dict[Any, int]) -> int:
    return next(iter(items.values()))
