"""A response's output items while they are written.

The pieces that made an answer are its whole record: the same pieces always make the same
items under the same ids, so that events can be sent again from any point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from engines.base import TokenLogprob
from service.answer.choice import Step
from service.api.common.logprobs import entries
from service.api.responses.hosted_item import HostedItem
from service.harmony.types import CALL_KINDS, Delta, DeltaKind

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Json = dict[str, Any]

_GOES_ON = (DeltaKind.ARGUMENTS, DeltaKind.HOSTED_RESULT)  # pieces of the item before
_PREFIXES = {
    DeltaKind.REASONING: "rs",
    DeltaKind.CONTENT: "msg",
    DeltaKind.TOOL_CALL: "fc",
    DeltaKind.CUSTOM_CALL: "ctc",
}


class Piece(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one step added to one item; a tool call's first piece has its name and no text.

    A call that this server runs is one piece, its result another, named by its status.
    """

    kind: DeltaKind
    text: str = ""
    name: str = ""
    logprobs: list[Json] | None = None


_decode_pieces = msgspec.json.Decoder(list[Piece]).decode


def encode_pieces(pieces: Sequence[Piece]) -> bytes:
    """Pieces as they are stored."""
    return msgspec.json.encode(pieces)


def decode_pieces(stored: bytes) -> list[Piece]:
    """The reverse of encode_pieces."""
    return _decode_pieces(stored)


def pieces_of(step: Step, logprobs: Sequence[TokenLogprob]) -> list[Piece]:
    """A step's deltas; neighbours of one kind become one piece."""
    if len(step.deltas) == 1:  # nearly always, when tokens come one by one
        delta = step.deltas[0]
        return [_piece(delta, logprobs)] if delta.text or delta.name else []
    pieces: list[Piece] = []
    for delta in step.deltas:
        piece = _piece(delta, logprobs)
        last = pieces[-1] if pieces else None
        if last and last.kind is piece.kind and piece.kind not in CALL_KINDS:
            joined = None if last.logprobs is None else last.logprobs + (piece.logprobs or [])
            pieces[-1] = Piece(piece.kind, last.text + piece.text, logprobs=joined)
        elif piece.text or piece.name:
            pieces.append(piece)
    return pieces


def _piece(delta: Delta, logprobs: Sequence[TokenLogprob]) -> Piece:
    shown = entries(delta, logprobs) if logprobs and delta.kind is DeltaKind.CONTENT else None
    return Piece(delta.kind, delta.text, delta.name, shown)


class Item:
    """One output item: reasoning, a message or a call."""

    def __init__(self, key: str, index: int, first: Piece, namespaces: frozenset[str]) -> None:
        self.kind = first.kind
        self.index = index
        self.id = f"{_PREFIXES[first.kind]}_{key}{index:04x}"
        self._call_id = f"call_{key[-20:]}{index:04x}"
        namespace, _, name = first.name.rpartition(".")
        is_inside = namespace in namespaces
        self._called = {"namespace": namespace, "name": name} if is_inside else {"name": first.name}
        self._texts: list[str] = []
        self._logprobs: list[Json] = []

    @property
    def is_call(self) -> bool:
        return self.kind in CALL_KINDS

    @property
    def text_field(self) -> str:
        """What the item and its events call its text."""
        if self.is_call:
            return "input" if self.kind is DeltaKind.CUSTOM_CALL else "arguments"
        return "text"

    @property
    def text(self) -> str:
        """All of the item's text, or its arguments, so far."""
        return "".join(self._texts)

    @property
    def logprobs(self) -> list[Json]:
        return self._logprobs

    def add(self, piece: Piece) -> None:
        self._texts.append(piece.text)
        if piece.logprobs:
            self._logprobs += piece.logprobs

    def part(self, text: str, logprobs: Sequence[Json] = ()) -> Json:
        """The content part of a reasoning or message item."""
        if self.kind is DeltaKind.REASONING:
            return {"type": "reasoning_text", "text": text}
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": list(logprobs),
        }

    def opened(self) -> Json:
        """The item before it has any text."""
        return self._body("in_progress", "", [])

    def closed(self, status: ItemStatus) -> Json:
        """The item as far as it came."""
        parts = [self.part(self.text, self._logprobs)] if self._texts else []
        return self._body(status, self.text, parts)

    def _body(self, status: ItemStatus, text: str, parts: list[Json]) -> Json:
        if self.is_call:
            is_custom = self.kind is DeltaKind.CUSTOM_CALL
            return {
                "id": self.id,
                "type": "custom_tool_call" if is_custom else "function_call",
                "status": status,
                "call_id": self._call_id,
                **self._called,
                self.text_field: text,
            }
        if self.kind is DeltaKind.CONTENT:
            head = {"id": self.id, "type": "message", "status": status, "role": "assistant"}
            return {**head, "content": parts}
        head = {"id": self.id, "type": "reasoning", "status": status}
        return {**head, "summary": [], "content": parts}


class Output:
    """Puts pieces together to items; the last one is open until another begins."""

    def __init__(self, head: Json) -> None:
        self.items: list[Item | HostedItem] = []
        self._key = item_key(head["id"])
        tools = head["tools"]
        self._namespaces = frozenset(t["name"] for t in tools if t["type"] == "namespace")

    def begins_item(self, piece: Piece) -> bool:
        """Whether this piece belongs to no item yet."""
        if piece.kind in _GOES_ON:
            return False
        last = self.items[-1] if self.items else None
        is_open = isinstance(last, Item) and last.kind is piece.kind
        return piece.kind in CALL_KINDS or not is_open

    def open(self, first: Piece) -> Item:
        """Begin an item, without the text of its first piece."""
        item = Item(self._key, len(self.items), first, self._namespaces)
        self.items.append(item)
        return item

    def host(self, call: Piece) -> HostedItem:
        """Begin the item of a call that this server runs."""
        item = HostedItem(self._key, len(self.items), call)
        self.items.append(item)
        return item

    def add(self, piece: Piece) -> None:
        """Put a piece where it belongs."""
        if piece.kind is DeltaKind.HOSTED_CALL:
            self.host(piece)
            return
        if self.begins_item(piece):
            self.open(piece)
        if piece.text or piece.kind is DeltaKind.HOSTED_RESULT:
            self.items[-1].add(piece)

    def closed(self, last: ItemStatus) -> list[Json]:
        """All items; only the last may have been cut."""
        if not self.items:
            return []
        earlier = [item.closed("completed") for item in self.items[:-1]]
        return [*earlier, self.items[-1].closed(last)]


def item_key(response_id: str) -> str:
    """What the ids of a response's items are made of."""
    return response_id.partition("_")[2]
