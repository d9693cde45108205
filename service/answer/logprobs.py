"""The log-probabilities of one choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from engines.base import TokenLogprob


class KeptLogprobs(Sequence[TokenLogprob]):
    """One for each generated token, by its position; the first ones may be forgotten.

    With 20 rivals each takes 2.6 kB and some 60 objects: a long answer's would be hundreds of MB.
    """

    def __init__(self) -> None:
        self._kept: list[TokenLogprob] = []
        self._num_forgotten = 0
        self.num_unknown = 0  # the first ones, which no engine computed

    def begin(self, num_tokens: int) -> None:
        """Count tokens that the client gave: they have no log-probabilities."""
        self.num_unknown = self._num_forgotten = num_tokens

    def extend(self, logprobs: Iterable[TokenLogprob]) -> None:
        self._kept.extend(logprobs)

    def cut(self, num_tokens: int) -> None:
        """Drop those of all tokens after the first `num_tokens`."""
        del self._kept[max(0, num_tokens - self._num_forgotten) :]

    def forget(self, num_tokens: int) -> None:
        """Free those of the first `num_tokens` tokens; they are not needed again."""
        if num_tokens > self._num_forgotten:
            del self._kept[: num_tokens - self._num_forgotten]
            self._num_forgotten = num_tokens

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TokenLogprob]: ...

    def __getitem__(self, index: int | slice) -> TokenLogprob | Sequence[TokenLogprob]:
        """The one at a position; raises IndexError for one that is forgotten."""
        if isinstance(index, slice):
            raise TypeError("positions are read one by one")
        if index < self._num_forgotten:
            raise IndexError(f"the log-probability at {index} was forgotten")
        return self._kept[index - self._num_forgotten]

    def __len__(self) -> int:
        return self._num_forgotten + len(self._kept)

    def __iter__(self) -> Iterator[TokenLogprob]:
        return iter(self._kept)
