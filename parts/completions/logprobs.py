"""Log-probabilities in the shape of OpenAI's older API: columns, one entry for each token."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from engines.base import TokenLogprob
from engines.prompt_logprobs import PromptLogprobs, unpacked
from service.api.common.answer import clamped
from service.chat_format import ChatFormat
from service.conversation import Delta

_UTF8 = codecs.getincrementaldecoder("utf-8")

_Entry = tuple[str, float, msgspec.Raw, int]


class LegacyLogprobs:
    """The log-probabilities of one choice's visible tokens in the older API's shape."""

    def __init__(self, format: ChatFormat, num_chars_before: int, *, has_all: bool = False) -> None:
        """`has_all`: tokens that are not visible have entries, too."""
        self._format = format
        self._num_chars = num_chars_before  # of the text up to the next delta
        self._num_read = num_chars_before  # of the tokens' own characters
        self._utf8 = _UTF8("replace")
        self._has_all = has_all
        self._num_added = 0
        self._entries: list[_Entry] = []

    def add(self, delta: Delta, logprobs: Sequence[TokenLogprob]) -> None:
        """Take a delta; its positions count in `logprobs`."""
        if self._num_read != self._num_chars:  # a broken character or a stop string lay between
            self._utf8.reset()
            self._num_read = self._num_chars
        self._num_chars += len(delta.text)
        if self._has_all and delta.positions:
            self._add_up_to(delta.positions[-1] + 1, logprobs)
        elif not self._has_all:
            for position in delta.positions:
                self._add(logprobs[position])

    def finish(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Take the tokens after the last visible one, where all have entries."""
        if self._has_all:
            self._add_up_to(len(logprobs), logprobs)

    def _add_up_to(self, end: int, logprobs: Sequence[TokenLogprob]) -> None:
        for position in range(self._num_added, end):
            self._add(logprobs[position])
        self._num_added = max(self._num_added, end)

    def take(self) -> dict[str, list[Any]]:
        """The entries since the last call."""
        columns = [list(column) for column in zip(*self._entries, strict=True)] or [[], [], [], []]
        self._entries.clear()
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return dict(zip(names, columns, strict=True))

    def _add(self, chosen: TokenLogprob) -> None:
        token, logprob = _spelling(chosen.token_id, self._format), clamped(chosen.logprob)
        top = {_spelling(token_id, self._format): clamped(value) for token_id, value in chosen.top}
        offset = min(self._num_read, self._num_chars)
        self._entries.append((token, logprob, _json({**top, token: logprob}), offset))
        self._num_read += _num_chars(chosen.token_id, self._utf8, self._format)


class EchoedLogprobs:
    """The log-probabilities of a prompt's tokens in the older API's shape."""

    def __init__(self, format: ChatFormat, prompt_token_ids: Sequence[int], num_top: int) -> None:
        self._format = format
        self._ids, self._num_top = prompt_token_ids, num_top

    def columns(self, packed: Sequence[PromptLogprobs]) -> dict[str, list[Any]]:
        """The lists of LegacyLogprobs, for the tokens of the prompt."""
        format, utf8, offset = self._format, _UTF8("replace"), 0
        offsets = []
        for token_id in self._ids:
            offsets.append(offset)
            offset += _num_chars(token_id, utf8, format)
        logprobs: list[float | None] = [None]
        tops: list[msgspec.Raw | None] = [None]
        for token in unpacked(packed, self._ids):
            likeliest = token.top[: self._num_top]
            top = {_spelling(id, format): clamped(value) for id, value in likeliest}
            logprobs.append(clamped(token.logprob))
            tops.append(_json({**top, _spelling(token.token_id, format): logprobs[-1]}))
        return {
            "tokens": [_spelling(token_id, format) for token_id in self._ids],
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _num_chars(token_id: int, utf8: codecs.IncrementalDecoder, format: ChatFormat) -> int:
    """Characters that a token adds to a text."""
    if format.is_ordinary(token_id):
        return len(utf8.decode(format.decode_bytes(token_id)))
    return len(format.name_of(token_id))


@lru_cache(maxsize=1 << 16)
def _spelling(token_id: int, format: ChatFormat) -> str:
    """The token's text; its bytes, as OpenAI writes them, when it is no whole characters."""
    if not format.is_ordinary(token_id):
        return format.name_of(token_id)
    raw = format.decode_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _json(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
