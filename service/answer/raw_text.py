"""Generated ids as the text they spell: for routes that take raw prompts."""

from __future__ import annotations

from collections.abc import Sequence

from service.harmony.types import Delta, DeltaKind
from service.harmony.vocabulary import Piece, TokenDecoder, is_ordinary, name_of


class RawText:
    """Gives content only, and takes no notice of Harmony: fed and finished like its parser."""

    num_reasoning_tokens = 0
    num_resyncs = 0

    def __init__(self, stop_token_ids: Sequence[int], *, has_marks: bool) -> None:
        self._stop_token_ids = frozenset(stop_token_ids)
        self._has_marks = has_marks  # control tokens are spelt out, else left out
        self._decoder = TokenDecoder()
        self._num_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take the next generated ids; a token that ends the answer is no part of its text."""
        pieces: list[Piece | None] = []
        for position, token_id in enumerate(token_ids, self._num_tokens):
            if is_ordinary(token_id):
                pieces.append(self._decoder.push(token_id, position))
                continue
            pieces.append(self._decoder.flush())
            if self._has_marks and token_id not in self._stop_token_ids:
                pieces.append((name_of(token_id), (position,)))
        self._num_tokens += len(token_ids)
        return [_delta(piece) for piece in pieces if piece]

    def finish(self) -> list[Delta]:
        """Give what was still held back of an unfinished character."""
        piece = self._decoder.flush()
        return [_delta(piece)] if piece else []


def _delta(piece: Piece) -> Delta:
    text, positions = piece
    return Delta(DeltaKind.CONTENT, text, positions=positions)
