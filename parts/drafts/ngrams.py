"""What followed the last tokens of a text when they occurred before."""

from __future__ import annotations

from typing import Final

_N: Final = 3  # tokens that have to be the same
_MAX_PROMPT: Final = 16_384  # tokens of a prompt that are looked at, the last: 2 ms
_FIRST_RATE: Final = 0.5
_WEIGHT: Final = 0.15  # of the last guess in the rate


class NgramLookup:
    """The n-grams of a growing text; proposes each next token before it is there.

    A right draft is followed by what came after it; after a wrong one the last n-gram is looked up
    again.
    """

    __slots__ = ("_at", "_ends", "_num_known", "_token_ids", "rate")

    def __init__(self, token_ids: list[int], num_prompt_tokens: int) -> None:
        """`token_ids` is kept: catch_up() takes in what was appended."""
        self._token_ids = token_ids
        self.rate = _FIRST_RATE  # of right drafts, the latest ones counting most
        first = max(num_prompt_tokens - _MAX_PROMPT, 0)
        prompt = token_ids[first:num_prompt_tokens]
        shifted = (prompt[i:] for i in range(_N))
        ends = range(first + _N, num_prompt_tokens)  # the last has no token after it yet
        self._ends = dict(zip(zip(*shifted, strict=False), ends, strict=False))
        self._num_known = num_prompt_tokens
        self._at: int | None = None  # where the guessed next token stands
        self._look_up(num_prompt_tokens)

    @property
    def has_guess(self) -> bool:
        return self._at is not None

    def catch_up(self) -> None:
        """Take in the new tokens, and compare them with the drafts."""
        token_ids = self._token_ids
        for end in range(self._num_known + 1, len(token_ids) + 1):
            if self._at is not None:
                is_right = token_ids[self._at] == token_ids[end - 1]
                self.rate += _WEIGHT * (is_right - self.rate)
                self._at = self._at + 1 if is_right else None
            self._look_up(end)
        self._num_known = len(token_ids)

    def guess(self, num: int) -> tuple[int, ...]:
        """The next `num` tokens; none without a draft. A running repetition continues."""
        if self._at is None:
            return ()
        text, start = self._token_ids, self._at
        period = len(text) - start
        return tuple(text[start + i % period] for i in range(num))

    def _look_up(self, end: int) -> None:
        """Remember the n-gram before `end`; propose what follows it, unless a draft exists."""
        ngram = tuple(self._token_ids[max(end - _N, 0) : end])
        if self._at is None:
            self._at = self._ends.get(ngram)
        self._ends[ngram] = end
