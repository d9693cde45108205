"""Generated ids as plain text, and the strings that end a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from service.chat_format import ChatFormat
from service.conversation import Delta, DeltaKind, TextPiece
from service.text_decoder import TextDecoder


class RawText:
    """Parses raw text: everything is content, and no tool is called."""

    num_reasoning_tokens = 0
    num_resyncs = 0
    is_reasoning: Final = False

    def __init__(
        self, format: ChatFormat, stop_token_ids: Sequence[int], *, has_marks: bool
    ) -> None:
        self._format = format
        self._stop_token_ids = frozenset(stop_token_ids)
        self._has_marks = has_marks  # control tokens are spelt out, else left out
        self._decoder = TextDecoder(format.decode_bytes)
        self._num_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take generated ids; a token that ends the answer is not part of its text."""
        pieces: list[TextPiece | None] = []
        for position, token_id in enumerate(token_ids, self._num_tokens):
            if self._format.is_ordinary(token_id):
                pieces.append(self._decoder.push(token_id, position))
                continue
            pieces.append(self._decoder.flush())
            if self._has_marks and token_id not in self._stop_token_ids:
                pieces.append((self._format.name_of(token_id), (position,)))
        self._num_tokens += len(token_ids)
        return [_delta(piece) for piece in pieces if piece]

    def finish(self) -> list[Delta]:
        """Return the held-back bytes of an unfinished character."""
        piece = self._decoder.flush()
        return [_delta(piece)] if piece else []


def _delta(piece: TextPiece) -> Delta:
    text, positions = piece
    return Delta(DeltaKind.CONTENT, text, positions=positions)


class StopStrings:
    """Finds stop strings; holds text back only while it may be the beginning of one."""

    def __init__(self, stops: Sequence[str], *, are_shown: bool = False) -> None:
        self._stops = tuple(stops)
        self._are_shown = are_shown
        self._held: list[Delta] = []
        self.matched: str | None = None

    @property
    def is_matched(self) -> bool:
        return self.matched is not None

    def feed(self, delta: Delta) -> list[Delta]:
        """Take content; give what can no longer be part of a stop string."""
        self._held.append(delta)
        text = "".join(held.text for held in self._held)
        starts = {stop: start for stop in self._stops if (start := text.find(stop)) >= 0}
        if starts:
            self.matched = min(starts, key=starts.__getitem__)
            num_shown = len(self.matched) if self._are_shown else 0
            return self._release(starts[self.matched] + num_shown)
        return self._release(len(text) - max(_overlap(text, stop) for stop in self._stops))

    def flush(self) -> list[Delta]:
        """Give what is still held when the answer ends without a stop string."""
        held, self._held = self._held, []
        return held

    def _release(self, num_chars: int) -> list[Delta]:
        """The first characters held; a piece that is cut keeps its positions on the left."""
        released: list[Delta] = []
        while self._held and num_chars > 0:
            delta = self._held.pop(0)
            if len(delta.text) > num_chars:
                released.append(replace(delta, text=delta.text[:num_chars]))
                self._held.insert(0, replace(delta, text=delta.text[num_chars:], positions=()))
                break
            num_chars -= len(delta.text)
            released.append(delta)
        return released


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
