"""Bulk beside requests whose clients wait: batches and background responses.

Bulk sits out the steps up to such a request's first text, but for one step in eight. While such
requests come, its own steps are short and none is launched ahead, so that the next prompt waits
for a part of one. A short step either reads prompts of bulk or decodes, the first that were
admitted: a device does little of both at once in a short time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from engines.native.loop.sequence import Sequence
from engines.native.step_costs import StepCosts, StepWork

_MOST_OUT: Final = 7  # steps in a row
_MOST_RESTS: Final = 16  # steps between two tries that were in vain
_LATELY_S: Final = 10.0  # since there was a request that is no bulk
_SHORT: Final = 0.25  # of the longest gap: a step
_LEAST: Final = 2.0  # times a step with one row: the same
_FEW: Final = 0.6  # of a short step: rows of bulk that take less have prompts read
_FIRST_TOKENS: Final = 4  # of an answer of gpt-oss, three come before its first text


def is_prompt(sequence: Sequence) -> bool:
    """Whether a client waits for the first text of the answer."""
    num = sequence.num_generated_tokens + sequence.num_pending_tokens
    return num < _FIRST_TOKENS and not sequence.is_bulk


class Bulk:
    """Counts bulk, and decides when it sits a step out. Nothing is called while there is none."""

    def __init__(self, max_gap_s: float | None) -> None:
        """Without a longest gap its steps may take any time."""
        self.num = 0  # sequences that have not ended
        self.short_s = None if max_gap_s is None else _SHORT * max_gap_s
        self.is_reading = False  # in short steps
        self._num_out = self._num_rests = self._num_vain = 0
        self._num_unread = 0  # steps until prompts are tried again
        self._until_s = 0.0

    def note_arrival(self, sequence: Sequence, now_s: float) -> None:
        if sequence.is_bulk:
            self.num += 1
        else:
            self._until_s = now_s + _LATELY_S

    def is_short(self, now_s: float, *, has_others: bool) -> bool:
        """Whether its steps are to be short now; `has_others`: other requests have not ended."""
        if has_others:
            self._until_s = now_s + _LATELY_S
        return self.short_s is not None and now_s < self._until_s

    def sits_out(self, *, has_prompt: bool) -> bool:
        """Whether it sits this step out; `has_prompt`: there is reason."""
        return has_prompt and not self._num_rests

    def note_in(self, *, has_prompt: bool) -> bool:
        """Count a step that it does not sit out; whether such prompts do."""
        is_turn = has_prompt and self._num_rests > 0 and not self._num_vain
        self._num_rests = max(self._num_rests - 1, 0)
        if not has_prompt:
            self._num_out = self._num_vain = 0
        return is_turn

    def note_out(self, *, is_vain: bool) -> None:
        """Count a step that it sat out; `is_vain`: no prompt got on."""
        self._num_out += 1
        if is_vain:
            self._num_rests = min(1 << self._num_vain, _MOST_RESTS)
            self._num_vain += 1
        else:
            self._num_vain = 0
            if self._num_out >= _MOST_OUT:
                self._num_rests, self._num_out = 1, 0

    def note_unread(self) -> None:
        """Have rows decode for some steps: there are no blocks for the prompts."""
        self.is_reading, self._num_unread = False, _MOST_RESTS

    def out_of_short(
        self, running: Iterable[Sequence], costs: StepCosts, *, has_room: bool
    ) -> set[Sequence]:
        """What sits out a short step; `running` is by rank. `has_room`: more of it may begin."""
        assert self.short_s is not None
        rows = [each for each in running if each.is_steady or each.num_schedulable_tokens == 1]
        prompts = {each for each in running if each.is_bulk and each.num_schedulable_tokens > 1}
        contexts = [0, *accumulate(len(each.token_ids) for each in rows)]
        num_others = sum(not each.is_bulk for each in rows)

        def seconds(num: int) -> float:
            return costs.seconds(StepWork(rows=num, context=contexts[num]))

        most_s = max(self.short_s, _LEAST * seconds(min(1, len(rows))))

        def is_above(num: int, share: float) -> bool:
            return seconds(num) > share * most_s

        num, least = len(rows), num_others + 1
        self._num_unread = max(self._num_unread - 1, 0)
        if not (prompts or has_room) or self._num_unread or is_above(num, 1.0):
            self.is_reading = False
        elif not is_above(num, _FEW) or num == num_others:
            self.is_reading = True
        if self.is_reading:
            return {*rows[num_others:]}
        while num > least and is_above(num, 1.0):
            num = max(num * 7 // 8, least)
        return prompts | {*rows[num:]}
