"""Which replica runs a request: the one whose cache holds most of its prompt, within bounds.

What a replica holds is remembered here, by what was sent to it: hashes of whole blocks of tokens,
each with all before it, the least recently used forgotten first. Several routers of one fleet
(one in each API process) know only their own traffic.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from engines.base import EngineRequest

BLOCK: Final = 64  # tokens
MAX_BLOCKS: Final = 16384  # of a replica: a million tokens
# A replica may run so many requests more than the idlest before others are taken instead.
_SLACK: Final = 4
_RATIO: Final = 1.25


class PrefixRecord:
    """The prompts that one replica has seen."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def num_cached(self, blocks: Sequence[int]) -> int:
        """How many leading blocks it has."""
        for number, block in enumerate(blocks):
            if block not in self._blocks:
                return number
        return len(blocks)

    def add(self, blocks: Sequence[int]) -> None:
        """Remember them; the first ones longest, as others are of no use without them."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()


class Router:
    """Chooses among replicas by their number."""

    def __init__(self, num_replicas: int) -> None:
        self._records = [PrefixRecord() for _ in range(num_replicas)]
        self._last = 0

    def choose(self, request: EngineRequest, loads: dict[int, int]) -> int:
        """The replica to run the request; `loads`: requests that each usable one runs now."""
        if len(self._records) == 1:
            return 0
        blocks = list(_blocks(request))
        most = max(min(loads.values()) * _RATIO, min(loads.values()) + _SLACK)
        able = [number for number, load in loads.items() if load <= most]
        chosen = max(able, key=lambda number: self._merit(number, blocks, loads))
        self._records[chosen].add(blocks)
        self._last = chosen
        return chosen

    def forget(self, number: int) -> None:
        """The replica has been started anew: its cache is empty."""
        self._records[number].clear()

    def _merit(
        self, number: int, blocks: Sequence[int], loads: dict[int, int]
    ) -> tuple[int, int, int]:
        """Most cached first, then the idlest, then each in turn."""
        turn = (number - self._last - 1) % len(self._records)
        return self._records[number].num_cached(blocks), -loads[number], -turn


def _blocks(request: EngineRequest) -> Iterator[int]:
    """A hash for each whole block, of it and all before it and the salt."""
    tokens = memoryview(array("q", _known(request)))
    before = hash(request.cache_salt)
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        before = hash((before, tokens[end - BLOCK : end].tobytes()))
        yield before


def _known(request: EngineRequest) -> Collection[int]:
    return request.prompt_token_ids + request.generated_token_ids
