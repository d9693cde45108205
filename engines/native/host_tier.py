"""Cached K/V blocks in host memory: those that were evicted from the device's pool.

A block is copied to the host when its place on the device is needed, and back when a sequence
begins that has it as a prefix and copying takes less time than computing. Copies are only noted
here, in order; the backend carries them out before the rows of the next step.

A block that was copied back stays in host memory too, but goes first when room is needed there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from engines.kv_events.events import HOST
from engines.native.backends.base import HostCapacity, Move
from engines.native.block_events import BlockEvents


class HostTier:
    """Which keys are in which places of host memory, by last use."""

    def __init__(self, capacity: HostCapacity) -> None:
        self.capacity = capacity
        # The seconds that computing `num` tokens behind `start` takes; the scheduler sets it.
        self.compute_s: Callable[[int, int], float] = lambda start, num: 0.0
        self.events: BlockEvents | None = None  # BlockManager.record sets it
        self.num_saved = 0  # blocks copied to the host in all
        self.num_loaded = 0  # blocks copied back in all
        self.num_hits = 0  # prompt tokens that were found here
        self._places: OrderedDict[bytes, int] = OrderedDict()  # the first one is given up first
        self._free = [*range(capacity.num_blocks)][::-1]
        self._moves: list[Move] = []

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    @property
    def num_used(self) -> int:
        return len(self._places)

    @property
    def pending_s(self) -> float:
        """Seconds that the pending copies take, those to the host included."""
        return len(self._moves) * self.capacity.load_s

    def is_worth(self, num_blocks: int, start: int, end: int) -> bool:
        """Whether copying the blocks takes less time than computing the tokens [start, end)."""
        return num_blocks * self.capacity.load_s < self.compute_s(start, end - start)

    def save(self, key: bytes, block: int) -> None:
        """Save an evicted block in the place of the least recently used one."""
        if key in self._places:
            self._places.move_to_end(key)
            return
        if self._free:
            place = self._free.pop()
        elif self._places:
            given_up, place = self._places.popitem(last=False)
            self._tell_removed(given_up)
        else:
            return
        self._places[key] = place
        if self.events is not None:
            self.events.saved(key)
        self._moves.append(Move(block, place, is_save=True))
        self.num_saved += 1

    def withdraw(self, keys: Iterable[bytes]) -> list[int]:
        """The places of these keys, which stay untouched until each is loaded."""
        return [self._places.pop(key) for key in keys]

    def load(self, key: bytes, place: int, block: int) -> None:
        """Copy a withdrawn key's block back to the device."""
        self._places[key] = place
        self._places.move_to_end(key, last=False)
        self._moves.append(Move(block, place, is_save=False))
        self.num_loaded += 1

    def take_moves(self) -> tuple[Move, ...]:
        """The copies that were noted, in order, for the next step."""
        moves, self._moves = tuple(self._moves), []
        return moves

    def clear(self) -> None:
        """Forget every block: a step failed, and the state of its copies is unknown."""
        self._free += self._places.values()
        for key in self._places:
            self._tell_removed(key)
        self._places.clear()

    def _tell_removed(self, key: bytes) -> None:
        if self.events is not None:
            self.events.removed(key, HOST)

    def faults(self) -> list[str]:
        """Inconsistencies: a place that is lost or held twice."""
        held = sorted([*self._free, *self._places.values()])
        if held == [*range(self.capacity.num_blocks)]:
            return []
        return [f"host places are lost or held twice: {len(held)} of {self.capacity.num_blocks}"]
