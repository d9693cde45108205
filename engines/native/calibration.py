"""Measures what steps take, by running some of each size before the engine serves.

The steps go through the contract of a backend like any others. Their sequences are made up: what
they leave in slots and blocks is void once a request takes these.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from engines.base import SamplingParams
from engines.native.backends.base import Backend, Batch, Row, SlotStart
from engines.native.loop.limits import SchedulerLimits
from engines.native.step_costs import SMALLEST_CHUNK, CostTable, StepCosts, powers

_SHORT: Final = 32  # tokens before a row that decodes
_DEEPEST: Final = 65_536  # tokens before a chunk, or before rows, to see what attention adds
_DEEP_ROWS: Final = 8  # share them
_MANY_ROWS: Final = 32  # beside a chunk
_WIDE_CHUNK: Final = 512
_AGAIN_S: Final = 0.05  # a step that took longer is not repeated
_SAME_ROUND: Final = 1.5  # times the attention of the smallest chunk, which is one round
_NEAR: Final = 16  # tokens

Clock = Callable[[], float]


def calibrate(
    backend: Backend,
    limits: SchedulerLimits,
    vocab_size: int,
    budget_s: float,
    clock: Clock = time.perf_counter,
) -> StepCosts:
    """Measure within about this many seconds, and extrapolate the rest."""
    return Calibration(backend, limits, vocab_size, budget_s, clock).run()


def longest_chunk(limits: SchedulerLimits) -> int:
    """Tokens of the largest chunk of a prompt that is measured."""
    return min(limits.max_model_len - 1, limits.max_num_batched_tokens)


class Calibration:
    """Steps of chosen sizes on a backend, timed."""

    def __init__(
        self,
        backend: Backend,
        limits: SchedulerLimits,
        vocab_size: int,
        budget_s: float,
        clock: Clock,
    ) -> None:
        self._backend, self._limits, self._clock = backend, limits, clock
        self._vocab_size = vocab_size
        self._end_s = clock() + budget_s
        self._chance = random.Random(0)
        capacity = backend.capacity
        self._block_size = capacity.block_size
        self._row_sizes = powers(1, limits.max_num_seqs)
        self._chunk_sizes = powers(SMALLEST_CHUNK, longest_chunk(limits))

    def run(self) -> StepCosts:
        rows = self._table(self._row_sizes, lambda num: self.decode(num, _SHORT))
        tokens = self._table(self._chunk_sizes, lambda num: self.prefill(0, num))
        return self._with_depth(rows, tokens, self._beside(rows, tokens))

    def _table(self, sizes: Sequence[int], batch_of: Callable[[int], Batch]) -> CostTable:
        """Seconds of each size: the ends first, then the sizes between them."""
        found: dict[int, float] = {}
        for size in _ends_first(sizes):
            if found and self._is_late(_line(found, size)):
                continue
            found[size] = self.time_of(partial(batch_of, size))
        seconds = {size: found.get(size) or _line(found, size) for size in sizes}
        return CostTable(seconds)

    def _beside(self, decode: CostTable, prefill: CostTable) -> float:
        """The share of their time that rows take in a step with a chunk."""
        rows = min(_MANY_ROWS, self._limits.max_num_seqs - 1)
        most = self._limits.max_num_batched_tokens - rows
        num = max((n for n in self._chunk_sizes if n <= min(_WIDE_CHUNK, most)), default=0)
        if rows < 1 or not num or self._is_late(decode.seconds(rows) + prefill.seconds(num)):
            return 1.0
        more_s = self.time_of(lambda: self.mixed(rows, num)) - prefill.seconds(num)
        return min(max(more_s / decode.seconds(rows), 0.1), 1.0)

    def _with_depth(self, decode: CostTable, prefill: CostTable, beside: float) -> StepCosts:
        """Add the cost of context: some deep rows, a short and a longer deep chunk."""
        depth = min(_DEEPEST, self._backend.capacity.max_model_len - 1, self._most_tokens())
        width = max((n for n in self._chunk_sizes if n <= min(1024, depth // 2)), default=0)
        if not width or self._is_late(4 * prefill.seconds(width)):
            return StepCosts(decode, prefill, per_context=1e-9, per_pair=1e-9, beside=beside)
        start, few = depth - width, self._chunk_sizes[0]
        rows = min(_DEEP_ROWS, self._limits.max_num_seqs)
        row_s = self.time_of(lambda: self.decode(rows, start // rows)) - decode.seconds(rows)
        few_s, wide_s = (max(self._attention(start, n, prefill), 1e-9) for n in (few, width))
        round_tokens = self._round_tokens(start, few, width, few_s, prefill)
        pairs = -(-width // round_tokens) * round_tokens * start
        return StepCosts(
            decode, prefill, max(row_s, 1e-9) / start, wide_s / pairs, round_tokens, beside
        )

    def _attention(self, start: int, num: int, prefill: CostTable) -> float:
        """Extra seconds that `num` tokens take from `start` on, compared with the start of a
        prompt."""
        return self.time_of(lambda: self.prefill(start, num)) - prefill.seconds(num)

    def _round_tokens(
        self, start: int, few: int, width: int, few_s: float, prefill: CostTable
    ) -> int:
        """The longest chunk whose attention is one round of the device's processors."""
        low, high = few, width  # low is one round, high is more
        while high - low > _NEAR and not self._is_late(2 * prefill.seconds(high)):
            middle = (low + high) // 2
            if self._attention(start, middle, prefill) <= _SAME_ROUND * few_s:
                low = middle
            else:
                high = middle
        return low

    def _is_late(self, next_s: float) -> bool:
        return self._clock() + next_s > self._end_s

    def _most_tokens(self) -> int:
        """Tokens that one sequence may have here, with blocks of both kinds of layers."""
        return (self._backend.capacity.num_blocks - 1) // 2 * self._block_size

    def time_of(self, batch_of: Callable[[], Batch]) -> float:
        """Seconds of a step; of the faster of two, unless it is long."""
        first = self._once(batch_of())
        return first if first > _AGAIN_S else min(first, self._once(batch_of()))

    def _once(self, batch: Batch) -> float:
        begun_s = self._clock()
        self._backend.launch(batch).collect()
        return self._clock() - begun_s

    def decode(self, num: int, context: int) -> Batch:
        """Rows of one token after `context` others; they share the blocks if there are too few."""
        each = self._num_blocks(context + 1)
        starts = tuple(
            self.start(slot, context, context + 1, slot * 2 * each) for slot in range(num)
        )
        return Batch(starts, tuple(Row(slot, context, context + 1, True) for slot in range(num)))

    def prefill(self, start: int, num: int) -> Batch:
        end = start + num
        return Batch((self.start(0, end, end, 0),), (Row(0, start, end, False),))

    def mixed(self, rows: int, num: int, *, context: int = _SHORT, start: int = 0) -> Batch:
        """Rows that decode, and a chunk of a prompt in the next slot."""
        decoding, first = self.decode(rows, context), 2 * rows * self._num_blocks(context + 1)
        starts = (*decoding.starts, self.start(rows, start + num, start + num, first))
        return Batch(starts, (*decoding.rows, Row(rows, start, start + num, False)))

    def start(self, slot: int, num_prompt: int, num_tokens: int, first_block: int) -> SlotStart:
        each, last = self._num_blocks(num_tokens), self._backend.capacity.num_blocks - 1
        blocks = [1 + (first_block + i) % last for i in range(2 * each)]
        tokens = tuple(self._chance.choices(range(self._vocab_size), k=num_tokens))
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        return SlotStart(
            slot, tokens, num_prompt, tuple(blocks[:each]), tuple(blocks[each:]), sampling, seed=0
        )

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


def _ends_first(sizes: Sequence[int]) -> list[int]:
    """The smallest, the largest, and the others from the small ones on."""
    return [*dict.fromkeys([sizes[0], sizes[-1], *sizes])]


def _line(seconds: Mapping[int, float], size: int) -> float:
    """The seconds of a size, by the nearest that were measured; with one of them, a quarter of what
    as many steps of it would take."""
    if len(seconds) == 1:
        [(only, found)] = seconds.items()
        return found * max(1.0, 0.25 * size / only)
    return CostTable(seconds).seconds(size)
