"""One step in the making: its chunks, and how much more it has room for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from engines.native.sequence import Sequence
from engines.native.step_costs import StepCosts, StepWork

_LEAST_PREFILL: Final = 0.25  # of the longest gap: a step has so much prefill however many decode
_MANY_PROMPTS: Final = 8
_NOTHING_DECODES: Final = 5.0  # times the longest gap: who comes meanwhile waits for two such steps
_NO_WORK: Final = StepWork()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step computes of one sequence: positions [start, end), and the drafts after them."""

    sequence: Sequence
    start: int
    end: int
    is_last: bool  # the chunk reaches the last token there is, so that the next one is sampled
    drafts: tuple[int, ...] = ()
    num_wanted: int = 0  # guesses that the backend is to bring of what comes after it
    prompt_logprobs: int | None = None  # the likeliest tokens beside each of the prompt's

    @property
    def has_result(self) -> bool:
        """Whether the backend brings something of it."""
        return self.is_last or self.prompt_logprobs is not None

    @property
    def is_decode(self) -> bool:
        """Whether it is a token that was sampled, with the guesses after it."""
        return self.is_last and self.end - self.start == 1

    @property
    def num_tokens(self) -> int:
        """Tokens to compute, drafts included."""
        return self.end - self.start + len(self.drafts)


def next_chunk(sequence: Sequence, num_tokens: int) -> Chunk:
    """The next so many known tokens of a sequence."""
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

        is_oldest_turn: who goes on if there is room for a small chunk alone.
        """
        self.num_left = max_tokens  # tokens that the step may still take
        self.chunks: dict[Sequence, Chunk] = {}
        self.preempted: set[Sequence] = set()
        self.is_tight = False  # there is room for one small chunk, which is not the oldest's
        self._costs = costs
        self._max_gap_s = max_gap_s
        self._limit_s = self._part_limit_s = math.inf  # of the step as a whole
        self._rows = self._context = 0  # of the rows that decode
        self._prefill = _NO_WORK
        self._kept, self._kept_tokens = _NO_WORK, 0
        self._is_oldest_turn = is_oldest_turn

    @property
    def work(self) -> StepWork:
        """What the step computes so far."""
        return self._prefill + StepWork(rows=self._rows, context=self._context)

    def take(self, chunk: Chunk) -> None:
        """Put a chunk into the step."""
        self.chunks[chunk.sequence] = chunk
        self._count(chunk, 1)

    def drop(self, sequence: Sequence) -> None:
        """Take a preempted sequence's chunk out again, if there is one."""
        if (chunk := self.chunks.pop(sequence, None)) is not None:
            self._count(chunk, -1)
        self.preempted.add(sequence)

    def end_decoding(self, num_prompts: int) -> None:
        """Note that no more decoding rows come: what time is left is for so many prompts.

        What ends a prompt may use the whole gap, a part of a prompt half of it: its reading makes
        many gaps. The more prompts there are, the more of the gap parts use, too.
        """
        gap_s = self._max_gap_s
        if gap_s is None:
            return
        if not self._rows:
            self._limit_s = self._part_limit_s = _NOTHING_DECODES * gap_s
            return
        decode_s = self._costs.seconds(self.work)
        good_s = self._costs.seconds(self._costs.chunk(0, self._costs.good_chunk()))
        share = 0.5 + 0.5 * min(num_prompts / _MANY_PROMPTS, 1.0)
        self._limit_s = max(gap_s, decode_s + _LEAST_PREFILL * gap_s)
        self._part_limit_s = min(max(share * gap_s, decode_s + good_s), self._limit_s)

    def keep_part(self, sequence: Sequence) -> None:
        """Keep half of what is left for a sequence that takes it last."""
        spent_s = self._costs.seconds(self.work)
        half_s = spent_s + (self._part_limit_s - spent_s) / 2
        start = sequence.num_scheduled_tokens
        most = min(sequence.num_schedulable_tokens, self.num_left // 2)
        num = self._fitting(start, most, half_s)
        if num == 0 and self._fitting(start, most, self._part_limit_s) == 0:
            self.is_tight = not self._is_oldest_turn
            num = 0 if self.is_tight else self._costs.small_chunk(start, most)
        if num:
            self._kept_tokens = num
            self._kept = self._costs.chunk(start, num)

    def keep_nothing(self) -> None:
        """Give back what was kept."""
        self._kept, self._kept_tokens = _NO_WORK, 0

    def ends(self, sequence: Sequence) -> bool:
        """Whether all that is left of a prompt fits."""
        return self.most_tokens(sequence) == sequence.num_schedulable_tokens

    def most_tokens(self, sequence: Sequence) -> int:
        """The sequence's longest next chunk that fits the step; 0 if none does.

        The first prompt of a step gets a small chunk in any case, so that it goes on.
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
        elif sign > 0:
            self._prefill += self._costs.chunk(chunk.start, num_tokens)
        else:
            self._prefill -= self._costs.chunk(chunk.start, num_tokens)
