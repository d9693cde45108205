"""Whether an answer repeats itself."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from engines.base import EngineRequest
from engines.fields import RepetitionDetection


def repetition_of(request: EngineRequest) -> Repetition | None:
    """Where the request asks for it, after what an earlier run has generated."""
    asked = request.sampling.repetition_detection
    return None if asked is None else Repetition(asked, request.generated_token_ids)


class Repetition:
    """The end of one answer, for all sizes of a pattern at once: a token costs one pass over them.

    The last `count` patterns of `size` tokens are equal if each of the last size * (count - 1)
    tokens equals the one `size` places before it.
    """

    def __init__(self, asked: RepetitionDetection, token_ids: Iterable[int]) -> None:
        sizes = np.arange(1, asked.max_pattern_size + 1)
        self._last = np.full(len(sizes), -1)  # tokens, the newest first
        self._num_equal = np.zeros_like(sizes)  # of the last tokens, by size
        needed = sizes * (asked.min_count - 1)
        self._needed = np.where(sizes >= asked.min_pattern_size, needed, np.iinfo(np.int64).max)
        for token_id in token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> bool:
        """Add the next token; whether the answer now ends with such patterns."""
        self._num_equal = np.where(self._last == token_id, self._num_equal + 1, 0)
        self._last[1:] = self._last[:-1]
        self._last[0] = token_id
        return bool((self._num_equal >= self._needed).any())
