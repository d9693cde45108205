"""The order of one tenant's requests of one priority.

`ShortestFirst` takes the shortest first, but bounds what passes the oldest: an allowance pays for
the work that is taken out of turn, and grows by the work that is taken in turn. So each request
waits for at most twice the work that it would wait for in order of arrival, and for `most_ahead`
and two requests more. Short is a matter of classes, each twice as long as the one before: in a
class the order is that of arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import Final, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

_SHORT: Final = 8  # bits: prompts of up to 256 tokens take about the same time


def length_class(num_tokens: int) -> int:
    """A number that grows by one when a prompt becomes twice as long; 0 for all short ones."""
    return max((max(num_tokens, 1) - 1).bit_length() - _SHORT, 0)


class _Items(Generic[Item]):
    """The items of one class, in order of arrival."""

    __slots__ = ("arrivals", "work")

    def __init__(self) -> None:
        self.arrivals: dict[Item, int] = {}
        self.work = 0.0

    @property
    def first(self) -> Item:
        return next(iter(self.arrivals))

    @property
    def first_arrival(self) -> int:
        return next(iter(self.arrivals.values()))


class ByArrival(Generic[Item]):
    """The items of one tenant and priority: first come, first served."""

    def __init__(self, most_ahead: float = 0.0) -> None:
        """`most_ahead`: the work that may pass the oldest while nothing was taken in turn."""
        self.work = 0.0  # of all items
        self._most_ahead = self._allowance = most_ahead
        # By whether they are long, and by length; none is empty.
        self._classes: dict[tuple[bool, int], _Items[Item]] = {}
        self._places: dict[Item, tuple[tuple[bool, int], float]] = {}  # class, work

    def __len__(self) -> int:
        return len(self._places)

    def arrivals(self) -> Iterator[tuple[int, Item]]:
        """All items with the numbers of their arrival, in any order."""
        for items in self._classes.values():
            yield from ((arrival, item) for item, arrival in items.arrivals.items())

    def add(self, item: Item, arrival: int, num_tokens: int, work: float, *, is_long: bool) -> None:
        key = (is_long, length_class(num_tokens))
        items = self._classes.setdefault(key, _Items())
        items.arrivals[item] = arrival
        items.work += work
        self.work += work
        self._places[item] = key, work

    def discard(self, item: Item) -> None:
        key, work = self._places.pop(item)
        items = self._classes[key]
        del items.arrivals[item]
        items.work -= work
        self.work -= work
        if not items.arrivals:
            del self._classes[key]

    def first_arrival(self, kinds: Collection[bool]) -> int | None:
        """When the oldest item of these kinds arrived: of short ones, of long ones."""
        return min((each.first_arrival for each in self._of(kinds)), default=None)

    def oldest(self, kinds: Collection[bool]) -> Item:
        return min(self._of(kinds), key=lambda each: each.first_arrival).first

    def head(self, kinds: Collection[bool]) -> Item:
        """The item of these kinds that is next; asking changes nothing."""
        return self.oldest(kinds)

    def note_taken(self, item: Item) -> None:
        """Count an item that was next and is removed now."""

    def work_before(self, num_tokens: int, work: float) -> float:
        """The work that is served before a new item of so much, if no more comes."""
        return self.work

    def _of(self, kinds: Collection[bool]) -> Iterator[_Items[Item]]:
        return (items for key, items in self._classes.items() if key[0] in kinds)


class ShortestFirst(ByArrival[Item]):
    """The shortest first, as far as those that it passes allow it."""

    def head(self, kinds: Collection[bool]) -> Item:
        if self._allowance <= 0:
            return self.oldest(kinds)
        return self._classes[min(key for key in self._classes if key[0] in kinds)].first

    def note_taken(self, item: Item) -> None:
        _, work = self._places[item]
        if item is self.oldest((False, True)):
            self._allowance = min(self._allowance, self._most_ahead) + work
        else:
            self._allowance -= work

    def work_before(self, num_tokens: int, work: float) -> float:
        """All that is not longer; and of the longer what pays for passing them."""
        most = length_class(num_tokens)
        ahead = sum(items.work for key, items in self._classes.items() if key[1] <= most)
        unpaid = max(ahead + work - self._allowance, 0.0)
        return min(ahead + unpaid, self.work)
