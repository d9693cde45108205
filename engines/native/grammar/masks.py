"""The masks of a step's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

import numpy as np

from engines.errors import EngineError, InvalidGrammar
from engines.native.backends.base import TokenMask, TokenMasks
from engines.native.grammar.compiler import Guide


class Masked(Protocol):
    """What a mask follows from: engines.native.loop.sequence.Sequence."""

    guide: Guide | None
    stop_token_ids: frozenset[int]
    is_ended: bool

    @property
    def may_stop(self) -> bool:
        """Whether a stop token may come."""
        ...


E = TypeVar("E", bound=Masked)


def made_masks(
    masked: dict[int, E], made: Mapping[E, TokenMasks], num_words: int
) -> tuple[dict[int, TokenMasks], list[tuple[E, EngineError]]]:
    """The masks of those sequences that have not ended, by row; and which end without a way on.

    `made`: masks that there are already.
    """
    bits = np.empty((len(masked), num_words), np.int32)
    masks: dict[int, TokenMasks] = {}
    ends: list[tuple[E, EngineError]] = []
    for (row, sequence), mask in zip(masked.items(), bits, strict=True):
        if sequence.is_ended:
            continue
        if sequence in made:
            masks[row] = made[sequence]
            continue
        try:
            _fill(mask, sequence)
        except InvalidGrammar as error:
            ends.append((sequence, error))
            continue
        if mask.any():
            masks[row] = mask[np.newaxis]
        else:
            reason = "the grammar reached a state in which no token is allowed"
            ends.append((sequence, InvalidGrammar(reason)))
    return masks, ends


def _fill(mask: TokenMask, sequence: Masked) -> None:
    """The mask of allowed tokens: what the guide allows, and no stop before min_tokens."""
    if sequence.guide is not None:
        sequence.guide.fill(mask)
    else:
        mask.fill(-1)
    if not sequence.may_stop:
        words = mask.view(np.uint32)
        for token_id in sequence.stop_token_ids:
            words[token_id // 32] &= ~np.uint32(1 << token_id % 32)
