"""Cached K/V blocks in host memory: those that were evicted from the device's pool.

A block is copied to the host when its place on the device is needed, and back when a sequence
begins that has it as a prefix and copying takes less time than computing. Copies are only noted
here, in order; the backend carries them out before the rows of the next step.

A block that was copied back stays in host memory too, but goes first when room is needed there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from engines.native.backends.base import Capacity, HostCapacity, Move
from engines.native.loop.block_pool import FULL, HOST, Prefix
from engines.native.loop.option import Loop, Option
from engines.native.loop.sequence import Sequence

_COPIED: Final = 0.5  # of the gap: with more than that to copy a step begins no other request


class HostTier(Option):
    """Which keys are in which places of host memory, by last use."""

    def __init__(self, capacity: HostCapacity) -> None:
        self.capacity = capacity
        # The seconds that computing `num` tokens behind `start` takes.
        self.compute_s: Callable[[int, int], float] = lambda start, num: 0.0
        self.num_saved = 0  # blocks copied to the host in all
        self.num_loaded = 0  # blocks copied back in all
        self.num_hits = 0  # prompt tokens that were found here
        self._places: OrderedDict[bytes, int] = OrderedDict()  # the first one is given up first
        self._free = [*range(capacity.num_blocks)][::-1]
        self._moves: list[Move] = []
        self._arriving: set[int] = set()  # blocks that the next step's copies fill
        self._late_s = 0.0  # how much longer than the last step its copies take

    def attach(self, loop: Loop, capacity: Capacity) -> None:
        limits = loop.limits
        self._blocks, self._max_gap_s = loop.blocks, limits.max_token_gap_s
        most = limits.max_num_batched_tokens
        self.compute_s = lambda start, num: loop.costs.prompt_seconds(start, num, most)

    def better_prefix(self, sequence: Sequence, near: Prefix) -> Prefix:
        """The prefix with the blocks on the host, where copying takes less time than computing."""
        cached, size = self._blocks.pool.cached, self._blocks.block_size
        far = self._blocks.prefix(sequence, lambda key: key in cached or key in self._places)
        num_missing = sum(key not in cached for key in far.keys)
        ends = near.num_blocks * size, far.num_blocks * size
        is_better = far.num_blocks > near.num_blocks and self.is_worth(num_missing, *ends)
        return far if is_better else near

    def bring(self, keys: list[bytes]) -> Mapping[bytes, int]:
        self.num_hits += sum(key.startswith(FULL) for key in keys) * self._blocks.block_size
        brought = {}
        for key, place in zip(keys, self.withdraw(keys), strict=True):
            brought[key] = block = self._blocks.fill(key)
            self.load(key, place, block)
            self._arriving.add(block)
        return brought

    def evicted(self, key: bytes, block: int) -> None:
        self.save(key, block)

    def defers(self, sequence: Sequence) -> bool:
        return self._blocks.has_one_of(sequence, self._arriving)

    def needs_moves(self, sequences: Iterable[Sequence]) -> bool:
        return bool(self._arriving) and any(map(self.defers, sequences))

    def gap_s(self, gap_s: float) -> float:
        """The gap, less what the next step may wait for copies."""
        return max(gap_s - self._late_s, (1 - _COPIED) * gap_s)

    def planned(self, seconds: float) -> None:
        self._late_s = max(self.pending_s - seconds, 0.0)

    def is_full(self) -> bool:
        return self._max_gap_s is not None and self.pending_s >= _COPIED * self._max_gap_s

    def counts(self) -> Mapping[str, float]:
        each = self.capacity.block_bytes
        return {
            "host_cache_hits": self.num_hits,
            "host_kv_saved_bytes": self.num_saved * each,
            "host_kv_loaded_bytes": self.num_loaded * each,
        }

    def levels(self) -> Mapping[str, float]:
        return {"host_kv_blocks": self.capacity.num_blocks, "host_kv_used_blocks": self.num_used}

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
            self._blocks.tell_removed(given_up, HOST)
        else:
            return
        self._places[key] = place
        self._blocks.tell_saved(key)
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
        self._arriving.clear()
        moves, self._moves = tuple(self._moves), []
        return moves

    def lose(self) -> None:
        """Forget every block: a step failed, and the state of its copies is unknown."""
        self._free += self._places.values()
        for key in self._places:
            self._blocks.tell_removed(key, HOST)
        self._places.clear()

    def faults(self) -> list[str]:
        """Inconsistencies: a place that is lost or held twice."""
        held = sorted([*self._free, *self._places.values()])
        if held == [*range(self.capacity.num_blocks)]:
            return []
        return [f"host places are lost or held twice: {len(held)} of {self.capacity.num_blocks}"]
