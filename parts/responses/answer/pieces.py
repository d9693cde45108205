"""Pieces: what a response is made of, as its steps bring it and as the store keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from service.answer.choice import Choice, ChoiceStep
from service.api.common.answer import entries
from service.conversation import CALL_KINDS, Delta, DeltaKind

_SLICE: Final = 1024


class Piece(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one step added to one item; a tool call's first piece has its name and no text.

    A call that this server runs is one piece, its result another, named by its status. `type` is
    what a name is to the client, beside a function or a custom tool (tools/typed.py).
    """

    kind: DeltaKind
    text: str = ""
    name: str = ""
    logprobs: list[msgspec.Raw] | None = None
    type: str = ""


_decode_pieces = msgspec.json.Decoder(list[Piece]).decode


def encode_pieces(pieces: Sequence[Piece]) -> bytes:
    return msgspec.json.encode(pieces)


def decode_pieces(stored: bytes) -> list[Piece]:
    return _decode_pieces(stored)


def slices(pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
    """The same pieces, as many at a time as take a few milliseconds to join or to write."""
    for start in range(0, len(pieces), _SLICE):
        yield pieces[start : start + _SLICE]


def pieces_of(step: ChoiceStep, choice: Choice) -> list[Piece]:
    """The pieces of a step's deltas; neighbours of one kind become one piece."""
    if len(step.deltas) == 1:  # nearly always, when tokens come one by one
        delta = step.deltas[0]
        return [_piece(delta, choice)] if delta.text or delta.name else []
    pieces: list[Piece] = []
    for delta in step.deltas:
        piece = _piece(delta, choice)
        last = pieces[-1] if pieces else None
        if last and last.kind is piece.kind and piece.kind not in CALL_KINDS:
            joined = None if last.logprobs is None else last.logprobs + (piece.logprobs or [])
            pieces[-1] = Piece(piece.kind, last.text + piece.text, logprobs=joined)
        elif piece.text or piece.name:
            pieces.append(piece)
    return pieces


def _piece(delta: Delta, choice: Choice) -> Piece:
    shown = None
    if choice.logprobs and delta.kind is DeltaKind.CONTENT:
        shown = entries(delta, choice.logprobs, choice.format)
    return Piece(delta.kind, delta.text, delta.name, shown, _type(delta, choice))


def _type(delta: Delta, choice: Choice) -> str:
    if not delta.name or not choice.tool_types:
        return ""
    is_hosted = delta.kind is DeltaKind.HOSTED_CALL
    name = delta.name.partition(".")[0] if is_hosted else delta.name
    return choice.tool_types.get(name, "")
