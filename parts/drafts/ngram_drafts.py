"""Proposing the next tokens of a sequence, for a step that verifies several of them at once.

Verification samples each token as it would without a draft (backends/base.py), so drafts
cost or save time and change no token. How many are worth it follows from how often a sequence's
drafts were right, and from what a step costs with them: at large batches that is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Sequence_
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engines.base import SamplingParams
from engines.native.backends.base import StepCost
from engines.native.loop.option import Option
from engines.native.loop.sequence import Sequence
from parts.drafts.ngrams import NgramLookup

_MOST_SEQUENCES: Final = 32  # in a step: on an H100 looking costs nothing there, and 4 % at 128
_MIN_GAIN: Final = 1.1  # in tokens a second: what it costs here is not in the model of a step


class NgramDrafts(Option):
    """Proposes what followed the last tokens when they occurred before, in prompt or answer.

    "Prompt lookup decoding" (Saxena 2023), with as many drafts as pay. A sequence's drafts
    are followed, at the cost of a dictionary's look-up, also while none is verified: so they come
    on again when a text begins to repeat itself. Nothing depends on the time that steps take:
    the same request alone takes the same steps.
    """

    def __init__(self, max_drafts: int, step_cost: StepCost) -> None:
        """`max_drafts` of one sequence in a step."""
        self._max_drafts, self._step_cost = max_drafts, step_cost

    def waits(self, decoding: Sequence_[Sequence]) -> bool:
        """Return whether some sequence will have drafts once its next token is known."""
        return any(self._numbers(decoding, num_unknown=1))

    def drafts(self, decoding: Sequence_[Sequence]) -> Mapping[Sequence, tuple[int, ...]]:
        """Return for each sequence as many drafts as pay, if its text repeats itself."""
        return {
            sequence: _lookup_of(sequence).guess(num)
            for sequence, num in zip(decoding, self._numbers(decoding), strict=True)
            if num
        }

    def _numbers(self, decoding: Sequence_[Sequence], num_unknown: int = 0) -> list[int]:
        """How many drafts of each sequence to verify, now or after some unknown tokens."""
        num = len(decoding)
        if not _is_worth_a_look(num, self._step_cost):
            return [0] * num
        rates = np.array([_rate(sequence) for sequence in decoding])
        if not rates.any():
            return [0] * num
        powers = np.arange(1, self._max_drafts + 1) + num_unknown
        return numbers_that_pay(rates[:, np.newaxis] ** powers, self._step_cost)


def _is_worth_a_look(num: int, step_cost: StepCost) -> bool:
    """Whether draft tokens of `num` sequences can pay off."""
    return 0 < num <= _MOST_SEQUENCES and not np.isinf(step_cost(num, np.ones(1))[0])


def _rate(sequence: Sequence) -> float:
    """How often the sequence's drafts are right; 0 if there is none of the next token."""
    if not _takes_drafts(sequence.sampling):
        return 0.0
    lookup = _lookup_of(sequence)
    lookup.catch_up()
    return lookup.rate if lookup.has_guess else 0.0


def _takes_drafts(p: SamplingParams) -> bool:
    """Whether a token's distribution does not depend on the tokens before it."""
    is_penalised = p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0
    return not (p.min_tokens or is_penalised)


def _lookup_of(sequence: Sequence) -> NgramLookup:
    lookup: NgramLookup | None = sequence.notes.get("drafts")
    if lookup is None:
        lookup = NgramLookup(sequence.token_ids, sequence.num_prompt_tokens)
        sequence.notes["drafts"] = lookup
    return lookup


def numbers_that_pay(chances: NDArray[np.float64], step_cost: StepCost) -> list[int]:
    """How many drafts of each sequence give the most tokens in a unit of time.

    chances (sequences, drafts): that a draft and all before it are right; falling.
    """
    num = len(chances)
    order = np.argsort(-chances, axis=None, kind="stable")
    tokens = num + np.cumsum(chances.ravel()[order])
    rates = tokens / step_cost(num, np.arange(1.0, chances.size + 1))
    best = int(np.argmax(rates))
    if rates[best] <= _MIN_GAIN * num / step_cost(num, np.zeros(1))[0]:
        return [0] * num
    of = order[: best + 1] // chances.shape[1]
    return np.bincount(of, minlength=num).tolist()  # type: ignore[no-any-return]
