"""Counts the tokens of an engine's steps, and the draft tokens that they verify."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

# The sizes of steps that are told apart; vLLM has the same.
STEP_TOKENS: Final = (1, *(8 << power for power in range(12)))


@dataclass(slots=True)
class StepCounts:
    """Grows with each step; what an engine does not tell stays empty."""

    step_tokens: int = 0
    steps_by_tokens: list[int] = field(default_factory=list)
    num_drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)

    def count_step(self, num_tokens: int) -> None:
        """Count a step that computed this number of tokens."""
        self.step_tokens += num_tokens
        self.steps_by_tokens = self.steps_by_tokens or [0] * (len(STEP_TOKENS) + 1)
        self.steps_by_tokens[bisect_left(STEP_TOKENS, num_tokens)] += 1

    def count_drafts(self, num_drafts: int, num_tokens: int, right: Sequence[int]) -> None:
        """Count verified drafts; `right`: those whose first token, second, ... was right."""
        self.num_drafts += num_drafts
        self.draft_tokens += num_tokens
        self.accepted_draft_tokens += sum(right)
        both = zip_longest(self.accepted_by_position, right, fillvalue=0)
        self.accepted_by_position = [before + now for before, now in both]

    def of_steps(self) -> dict[str, Any]:
        """The fields of EngineStats that are counted here."""
        return {
            "step_tokens": self.step_tokens,
            "steps_by_tokens": tuple(self.steps_by_tokens),
            "num_drafts": self.num_drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_draft_tokens": self.accepted_draft_tokens,
            "accepted_by_position": tuple(self.accepted_by_position),
        }
