"""A step whose logits are in host memory: it samples once it has its masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from engines.base import PromptLogprobs
from engines.native.backends.base import Sampled, TokenMasks
from engines.native.host.logits import Logits
from engines.native.host.sampler import sample, verify
from engines.native.host.slots import Span

Propose = Callable[[Sequence[Span], Sequence[Sampled]], list[tuple[int, ...]]]
"""Drafts after the sampled tokens, as many as each span wants."""


class HostStep:
    """A computed step: logits, and tokens once it has its masks."""

    def __init__(
        self,
        logits: Logits,
        spans: dict[int, Span],
        propose: Propose | None = None,
        scores: Mapping[int, PromptLogprobs] | None = None,
    ) -> None:
        """`spans` that are last, and `scores` of prompts, by their row in the batch."""
        self._logits: Logits | None = logits
        self._spans, self._propose = spans, propose
        self._scores = scores or {}
        self._sampled: list[Sampled] = []

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Sample with these masks, by the row in the batch."""
        assert self._logits is not None
        self._sampled = _sample(self._logits, self._spans, masks)
        self._logits = None
        for span, sampled in zip(self._spans.values(), self._sampled, strict=True):
            span.slot.token_ids += sampled.token_ids
        spans = [*self._spans.values()]
        if self._propose is not None and any(span.num_wanted for span in spans):
            guesses = self._propose(spans, self._sampled)
            self._sampled = [
                each._replace(proposed=of) for each, of in zip(self._sampled, guesses, strict=True)
            ]

    def collect(self) -> list[Sampled]:
        """Wait for the results of each row with is_last or prompt_logprobs."""
        if not self._scores:
            return self._sampled
        sampled = dict(zip(self._spans, self._sampled, strict=True))
        return [
            sampled.get(row, Sampled(()))._replace(prompt_logprobs=self._scores.get(row))
            for row in sorted({*sampled, *self._scores})
        ]


def _sample(
    logits: Logits, spans: dict[int, Span], masks: Mapping[int, TokenMasks]
) -> list[Sampled]:
    if not any(span.drafts for span in spans.values()):
        first_masks = {i: masks[row][0] for i, row in enumerate(spans) if row in masks}
        return sample(logits, [span.slot for span in spans.values()], first_masks)
    sampled, first = [], 0
    for row, span in spans.items():
        end = first + span.num_sampled
        rows = Logits(logits.values[first:end], logits.columns)
        if span.drafts:
            sampled.append(verify(rows, span.slot, span.drafts, masks.get(row)))
        else:
            sampled += sample(rows, [span.slot], {0: masks[row][0]} if row in masks else {})
        first = end
    return sampled
