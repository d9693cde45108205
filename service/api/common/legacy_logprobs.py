"""Log-probabilities in the shape of OpenAI's older completions API."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from engines.base import TokenLogprob
from service.api.common.logprobs import clamped
from service.harmony.types import Delta
from service.harmony.vocabulary import WHOLE_TEXTS, decode_bytes, is_ordinary, name_of

_UTF8 = codecs.getincrementaldecoder("utf-8")


class LegacyLogprobs:
    """Entries of one choice's visible tokens, with where in the text each one begins."""

    def __init__(self, num_chars_before: int) -> None:
        self._num_chars = num_chars_before  # of the text up to the next delta
        self._num_read = num_chars_before  # of the tokens' own characters
        self._utf8 = _UTF8("replace")
        self._entries: list[tuple[str, float, dict[str, float], int]] = []

    def add(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> None:
        """Take a piece of text; its positions count in `logprobs`."""
        if self._num_read != self._num_chars:  # a broken character or a stop string lay between
            self._utf8.reset()
            self._num_read = self._num_chars
        self._num_chars += len(delta.text)
        for position in delta.positions:
            self._add(logprobs[position])

    def take(self) -> dict[str, list[Any]]:
        """The entries since the last call."""
        columns = [list(column) for column in zip(*self._entries, strict=True)] or [[], [], [], []]
        self._entries.clear()
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return dict(zip(names, columns, strict=True))

    def _add(self, chosen: TokenLogprob) -> None:
        token, logprob = _spelling(chosen.token_id), clamped(chosen.logprob)
        top = {_spelling(token_id): clamped(value) for token_id, value in chosen.top}
        offset = min(self._num_read, self._num_chars)
        self._entries.append((token, logprob, {**top, token: logprob}, offset))
        if is_ordinary(chosen.token_id):
            self._num_read += len(self._utf8.decode(decode_bytes(chosen.token_id)))
        else:
            self._num_read += len(token)


def _spelling(token_id: int) -> str:
    """The token's text; its bytes, as OpenAI writes them, when it is no whole characters."""
    if not is_ordinary(token_id):
        return name_of(token_id)
    text = WHOLE_TEXTS[token_id]
    if text is not None:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in decode_bytes(token_id))
