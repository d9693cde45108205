"""One step in the making: its chunks, the room that is left, and the batch that it becomes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from engines.native.backends.base import Batch, Move, Row, SlotStart, SteadyRows
from engines.native.loop.coming import StepTurn
from engines.native.loop.sequence import Sequence
from engines.native.step_costs import StepCosts, StepWork

_LATE_S: Final = 3.0  # since a request arrived
_LATE_GAP_S: Final = 0.05  # then, and in proportion to the wait from there on
_LONGEST_GAP_S: Final = 0.2

_PLANNED: Final = 0.85  # of the longest gap: predictions of a step are off by some percent
# A part of the only prompt uses this of what is planned. Behind 100,000 tokens on an H200 it is
# what one round of attention takes beside 32 rows: with half the prompt takes 7.4 s there instead
# of 4.7, simulated.
_ALONE: Final = 0.6
_LEAST_PREFILL: Final = 0.25  # of the longest gap: a step has so much prefill however many decode
# Times the longest gap: a request that comes meanwhile waits for two such steps.
_NOTHING_DECODES: Final = 5.0
_NO_WORK: Final = StepWork()


def allowed_gap_s(
    target_s: float | None, prompts: Iterable[Sequence], now_s: float
) -> float | None:
    """The target, or a longer gap if the second-oldest prompt has waited for long; in seconds.

    Many prompts at once would otherwise wait past their limit while few answers keep the target.
    One long prompt never lengthens gaps: no other request waits behind it.
    """
    if target_s is None:
        return None
    arrived = sorted(prompt.arrived_s for prompt in prompts if not prompt.is_resumed)[:2]
    waited_s = now_s - arrived[-1] if len(arrived) == 2 else 0.0
    if waited_s < _LATE_S:
        return target_s
    return max(target_s, min(_LATE_GAP_S * waited_s / _LATE_S, _LONGEST_GAP_S))


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step computes of one sequence: positions [start, end), and the drafts after them."""

    sequence: Sequence
    start: int
    end: int
    is_last: bool  # the chunk reaches the last token there is, so that the next one is sampled
    drafts: tuple[int, ...] = ()
    prompt_logprobs: int | None = None  # the likeliest tokens beside each of the prompt's

    @property
    def has_result(self) -> bool:
        return self.is_last or self.prompt_logprobs is not None

    @property
    def is_masked(self) -> bool:
        return self.is_last and self.sequence.is_masked

    @property
    def is_decode(self) -> bool:
        """Whether it is a sampled token, with the drafts after it."""
        return self.is_last and self.end - self.start == 1

    @property
    def num_tokens(self) -> int:
        return self.end - self.start + len(self.drafts)

    def schedule(self) -> None:
        """Note in the sequence that a step will compute this."""
        sequence = self.sequence
        sequence.num_scheduled_tokens = self.end
        sequence.num_pending_tokens += self.is_last
        sequence.is_verifying = bool(self.drafts)

    def put_off(self) -> Chunk:
        """Have the next token sampled by a later step; what is left of this one."""
        sequence = self.sequence
        sequence.num_pending_tokens -= 1
        sequence.num_scheduled_tokens = self.end - 1
        sequence.is_started = False  # the slot has a token that is not taken
        return replace(self, end=self.end - 1, is_last=False)

    def cancel(self) -> None:
        """Take it back: the step failed. Chunks of later steps come first."""
        sequence = self.sequence
        sequence.num_pending_tokens -= self.is_last
        sequence.num_scheduled_tokens = min(sequence.num_scheduled_tokens, self.start)
        sequence.is_verifying = sequence.is_started = False


def next_chunk(sequence: Sequence, num_tokens: int) -> Chunk:
    start = sequence.num_scheduled_tokens
    num_top = sequence.sampling.prompt_logprobs if sequence.wants_scores(start) else None
    is_last = num_tokens == sequence.num_schedulable_tokens
    return Chunk(sequence, start, start + num_tokens, is_last, prompt_logprobs=num_top)


class StepPlan:
    """Bounds a step by its tokens and by the seconds it is expected to take."""

    def __init__(
        self, max_tokens: int, max_gap_s: float | None, costs: StepCosts, *, is_oldest_turn: bool
    ) -> None:
        """`max_gap_s`: between two tokens of a sequence; None: steps may take any time.

        is_oldest_turn: whether the oldest continues if there is room for one small chunk only.
        """
        self.num_left = max_tokens  # tokens that the step may still take
        self.chunks: dict[Sequence, Chunk] = {}
        self.preempted: set[Sequence] = set()
        self.turn = StepTurn.ALL
        self.is_short = False  # also when nothing decodes
        self.is_tight = False  # there is room for one small chunk, which is not the oldest's
        self._costs = costs
        self._max_gap_s = max_gap_s
        self._limit_s = self._part_limit_s = math.inf  # of the step as a whole
        self._rows = self._context = 0  # of the rows that decode
        self._prefill = _NO_WORK
        self._kept, self._kept_tokens = _NO_WORK, 0
        self.is_oldest_turn = is_oldest_turn

    @property
    def work(self) -> StepWork:
        return self._prefill + StepWork(rows=self._rows, context=self._context)

    def take(self, chunk: Chunk) -> None:
        self.chunks[chunk.sequence] = chunk
        self._count(chunk, 1)

    def take_steady(self, num: int, context: int) -> None:
        self.num_left -= num
        self._rows += num
        self._context += context

    def drop(self, sequence: Sequence) -> None:
        """Take a preempted sequence's chunk out again, if there is one."""
        if (chunk := self.chunks.pop(sequence, None)) is not None:
            self._count(chunk, -1)
        self.preempted.add(sequence)

    def end_decoding(self, num_prompts: int) -> None:
        """No more decoding rows come: the remaining time is for `num_prompts` prompts.

        What ends a prompt may use the whole gap, a part of the only prompt 0.6 of it: its reading
        makes many gaps. With more than one prompt parts may use the whole gap, too.
        """
        if self._max_gap_s is None:
            return
        if not (self._rows or self.is_short):
            self._limit_s = self._part_limit_s = _NOTHING_DECODES * self._max_gap_s
            return
        gap_s = _PLANNED * self._max_gap_s
        decode_s = self._costs.seconds(self.work)
        good_s = self._costs.seconds(self._costs.chunk(0, self._costs.good_chunk()))
        share = 1.0 if num_prompts > 1 else _ALONE
        self._limit_s = max(gap_s, decode_s + _LEAST_PREFILL * gap_s)
        self._part_limit_s = min(max(share * gap_s, decode_s + good_s), self._limit_s)

    def reserve_share(self, sequence: Sequence) -> None:
        """Reserve half of the rest for a sequence that is served last."""
        spent_s = self._costs.seconds(self.work)
        half_s = spent_s + (self._part_limit_s - spent_s) / 2
        start = sequence.num_scheduled_tokens
        most = min(sequence.num_schedulable_tokens, self.num_left // 2)
        num = self._fitting(start, most, half_s)
        if num == 0 and self._fitting(start, most, self._part_limit_s) == 0:
            self.is_tight = not self.is_oldest_turn
            num = 0 if self.is_tight else self._costs.small_chunk(start, most)
        if num:
            self._kept_tokens = num
            self._kept = self._costs.chunk(start, num)

    def release_share(self) -> None:
        self._kept, self._kept_tokens = _NO_WORK, 0

    def ends(self, sequence: Sequence) -> bool:
        """Whether the rest of a prompt fits."""
        return self.most_tokens(sequence) == sequence.num_schedulable_tokens

    def most_tokens(self, sequence: Sequence) -> int:
        """The sequence's longest next chunk that fits the step; 0 if none does.

        The first prompt of a step gets a small chunk in any case, so that it continues.
        """
        start, num_prompt = sequence.num_scheduled_tokens, sequence.num_schedulable_tokens
        most = min(num_prompt, self.num_left - self._kept_tokens)
        if most <= 0:
            return 0
        if most == num_prompt and self._fitting(start, most, self._limit_s) == most:
            return most
        num = self._fitting(start, most, self._part_limit_s)
        if num == 0 and not self._prefill.tokens and not self._kept_tokens:
            return self._costs.small_chunk(start, most)
        return num

    def _fitting(self, start: int, most: int, limit_s: float) -> int:
        if most <= 0 or limit_s == math.inf:
            return max(most, 0)
        return self._costs.most_tokens(self.work + self._kept, start, most, limit_s)

    def _count(self, chunk: Chunk, sign: int) -> None:
        num_tokens = chunk.num_tokens
        self.num_left -= sign * num_tokens
        if chunk.is_decode:
            self._rows += sign * num_tokens
            self._context += sign * chunk.end
        else:
            work = self._costs.chunk(chunk.start, num_tokens)
            self._prefill = self._prefill + work if sign > 0 else self._prefill - work


def build_batch(
    chunks: list[Chunk],
    moves: tuple[Move, ...] = (),
    *,
    needs_moves: bool = False,
    steady: SteadyRows | None = None,
) -> Batch:
    """A step with these chunks, which the backend is taken to know from here on.

    `needs_moves`: a chunk reads a block that a move of this step loads.
    """
    starts = [_start(chunk) for chunk in chunks if not chunk.sequence.is_started]
    return Batch(tuple(starts), tuple(map(row_of, chunks)), moves, needs_moves, steady)


def _start(chunk: Chunk) -> SlotStart:
    sequence = chunk.sequence
    assert sequence.slot is not None
    assert sequence.num_pending_tokens == chunk.is_last, "a slot starts with tokens all known"
    sequence.is_started = True
    sequence.num_sent_blocks = len(sequence.full_blocks)
    tokens = tuple(sequence.token_ids), sequence.num_prompt_tokens
    tables = tuple(sequence.full_blocks), tuple(sequence.window_blocks)
    adapter = None if (asked := sequence.request.adapter) is None else asked.key
    return SlotStart(sequence.slot, *tokens, *tables, sequence.sampling, sequence.seed, adapter)


def row_of(chunk: Chunk) -> Row:
    """The chunk's row, with the blocks that the backend is taken to know from here on."""
    sequence = chunk.sequence
    assert sequence.slot is not None
    full: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    num_sent, num_blocks = sequence.num_sent_blocks, len(sequence.full_blocks)
    if num_blocks > num_sent:
        full = tuple(sequence.full_blocks[num_sent:])
        window = tuple(sequence.window_blocks[num_sent:])
        sequence.num_sent_blocks = num_blocks
    span, results = (chunk.start, chunk.end, chunk.is_last), (chunk.drafts, chunk.prompt_logprobs)
    return Row(sequence.slot, *span, full, window, chunk.is_masked, *results)
