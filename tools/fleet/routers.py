"""Who gives a request to which GPU."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from engines.fleet import BLOCK as FRONTS_BLOCK
from engines.fleet import MAX_BLOCKS, most_load
from tools.fleet.gpu import Gpu
from tools.fleet.trace import BLOCK, Request


class Router(Protocol):
    """Chooses a GPU by its number."""

    def choose(self, request: Request, gpus: Sequence[Gpu]) -> int: ...

    def note(self, number: int, stored: Sequence[int], dropped: Sequence[int]) -> None:
        """Be told what a GPU has stored and dropped."""
        return


class RoundRobin(Router):
    """One after the other."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: Request, gpus: Sequence[Gpu]) -> int:
        self._last = (self._last + 1) % len(gpus)
        return self._last


class Idlest(Router):
    """The GPU with the fewest requests."""

    def choose(self, request: Request, gpus: Sequence[Gpu]) -> int:
        return min(range(len(gpus)), key=lambda number: gpus[number].num_requests)


class Holders:
    """Which GPUs have which blocks: a bit a GPU."""

    def __init__(self) -> None:
        self._of: defaultdict[int, int] = defaultdict(int)

    def add(self, block: int, number: int) -> None:
        self._of[block] |= 1 << number

    def drop(self, block: int, number: int) -> None:
        self._of[block] &= ~(1 << number)
        if not self._of[block]:
            del self._of[block]

    def longest(self, blocks: Sequence[int], loads: Sequence[int]) -> int:
        """Those that have the longest beginning, of those that are not too busy for theirs."""
        least, found, left = min(loads), 0, (1 << len(loads)) - 1
        for count in range(len(blocks) + 1):
            if count:
                left &= self._of.get(blocks[count - 1], 0)
            most = most_load(least, count * BLOCK)
            able = sum(1 << number for number in _bits(left) if loads[number] <= most)
            found = able or found
            if not left:
                break
        return found


def _choose(holders: Holders, request: Request, gpus: Sequence[Gpu], last: int) -> int:
    """As engines.fleet.ReplicaRouter: the longest beginning, within bounds of load; of those the
    idlest, and of those the next one."""
    loads = [gpu.num_requests for gpu in gpus]
    best = holders.longest(request.blocks, loads)
    return min(_bits(best), key=lambda number: (loads[number], number <= last))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class BySent(Router):
    """The front's own router: what a GPU holds is taken to be what was sent to it."""

    _MOST: Final = MAX_BLOCKS * FRONTS_BLOCK // BLOCK  # as many tokens as the front remembers

    def __init__(self) -> None:
        self._holders = Holders()
        self._sent: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._last = 0

    def choose(self, request: Request, gpus: Sequence[Gpu]) -> int:
        chosen = self._last = _choose(self._holders, request, gpus, self._last)
        sent = self._sent[chosen]
        for block in reversed(request.blocks):
            sent[block] = None
            sent.move_to_end(block)
            self._holders.add(block, chosen)
        while len(sent) > self._MOST:
            self._holders.drop(sent.popitem(last=False)[0], chosen)
        return chosen


class ByEvents(Router):
    """A router that reads KV events: it knows what each GPU holds now."""

    def __init__(self) -> None:
        self._holders = Holders()
        self._last = 0

    def choose(self, request: Request, gpus: Sequence[Gpu]) -> int:
        self._last = _choose(self._holders, request, gpus, self._last)
        return self._last

    def note(self, number: int, stored: Sequence[int], dropped: Sequence[int]) -> None:
        for block in stored:
            self._holders.add(block, number)
        for block in dropped:
            self._holders.drop(block, number)


ROUTERS: Final[dict[str, Callable[[], Router]]] = {
    "round robin": RoundRobin,
    "idlest": Idlest,
    "front": BySent,
    "KV events": ByEvents,
}
