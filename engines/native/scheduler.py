"""Who computes what in the next step."""

from __future__ import annotations

from dataclasses import dataclass

from engines.native.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute positions [num_computed_tokens, num_computed_tokens + num_tokens) of a sequence."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Whether the chunk reaches the last known token, so that the next one is sampled."""
        sequence = self.sequence
        return sequence.num_computed_tokens + self.num_tokens == len(sequence.token_ids)
