"""Who waits, and who of them is served next.

Lower priorities are served first. Within a priority the tenants share: each has a counter of
the work done for it, and the tenant with the least goes first, its own items in order of
arrival (the virtual token counter of "Fairness in Serving Large Language Models", OSDI 2024).
A tenant with nothing waiting before starts at the present turn: idling saves up no service,
and having been alone costs none. One turn in OLDEST_EVERY goes to whoever waits longest, so
that even the last priority never starves.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator
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
    tenants: dict[str, dict[T, int]] = field(default_factory=dict)  # arrival numbers, in order


class FairQueue(Generic[T]):
    """A queue by priority, then fair between tenants, then by arrival; an item is in it at most
    once."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane[T]] = {}
        self._places: dict[T, tuple[int, str | None]] = {}  # priority, tenant; None: restored
        self._num_waiting: dict[str, int] = {}  # never 0
        self._costs: dict[str, float] = {}  # each tenant's counter, where it is above the turn
        self._turn = 0.0  # the least counter at the last regular turn; never falls
        self._arrivals = count()
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[T]:
        """By priority; within one those who were restored, then by arrival."""
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

    def add(self, item: T, priority: int, tenant: str) -> None:
        """Add an item behind those of its tenant and priority."""
        if tenant not in self._num_waiting:
            self._costs[tenant] = max(self._cost(tenant), self._turn)
        self._num_waiting[tenant] = self._num_waiting.get(tenant, 0) + 1
        self._lane(priority).tenants.setdefault(tenant, {})[item] = next(self._arrivals)
        self._places[item] = (priority, tenant)

    def restore(self, item: T, priority: int, rank: int) -> None:
        """Put back an item that was being served, before all new ones of its priority."""
        insort(self._lane(priority).restored, (rank, item), key=itemgetter(0))
        self._places[item] = (priority, None)

    def charge(self, tenant: str, cost: float) -> None:
        """Count work done for a tenant, whether or not more of it waits."""
        self._costs[tenant] = self._costs.get(tenant, self._turn) + cost  # for every token

    def head(self) -> T:
        """The item that is next; the same until something is added, discarded, taken or charged."""
        if self._is_turn_of_oldest():
            return self._oldest()
        lane = self._lanes[min(self._lanes)]
        if lane.restored:
            return lane.restored[0][1]
        return _first(lane.tenants[min(lane.tenants, key=self._cost)])

    def take(self) -> T:
        """Remove the head and return it."""
        item = self.head()
        _, tenant = self._places[item]
        if tenant is not None and not self._is_turn_of_oldest():
            self._turn = max(self._turn, self._cost(tenant))
        self._num_taken += 1
        self.discard(item)
        return item

    def discard(self, item: T) -> None:
        """Remove an item if it is in the queue."""
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

    def _discard_new(self, lane: _Lane[T], tenant: str, item: T) -> None:
        del lane.tenants[tenant][item]
        if not lane.tenants[tenant]:
            del lane.tenants[tenant]
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

    def _oldest(self) -> T:
        """The restored were served before any of the new came to be."""
        restored = [lane.restored[0] for lane in self._lanes.values() if lane.restored]
        if restored:
            return min(restored, key=itemgetter(0))[1]
        tenants = [items for lane in self._lanes.values() for items in lane.tenants.values()]
        return _first(min(tenants, key=_first_arrival))


def _first(items: dict[T, int]) -> T:
    return next(iter(items))


def _first_arrival(items: dict[Any, int]) -> int:
    return next(iter(items.values()))
