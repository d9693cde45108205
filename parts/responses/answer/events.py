"""Pieces → the typed events of a streamed response, numbered and in order.

This is the hot path: of a delta only the number and the model's text are encoded each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from parts.responses.answer.figures import StreamFigures
from parts.responses.answer.output import CompactedItem, HostedItem, Item, ItemStatus, Output, Seal
from parts.responses.answer.pieces import Piece
from parts.responses.answer.typed import Event, TypedItem
from service.conversation import DeltaKind
from service.http.failures import ErrorAnswer

Json = dict[str, Any]

_HOSTED = (DeltaKind.HOSTED_CALL, DeltaKind.HOSTED_RESULT)
_encode = msgspec.json.encode
EventNames = Mapping[DeltaKind, str]
OPENAI_NAMES: Final[EventNames] = {
    DeltaKind.REASONING: "response.reasoning_text",
    DeltaKind.CONTENT: "response.output_text",
    DeltaKind.TOOL_CALL: "response.function_call_arguments",
    DeltaKind.CUSTOM_CALL: "response.custom_tool_call_input",
}
# https://www.openresponses.org/specification has another name for the same event.
OPEN_RESPONSES_NAMES: Final[EventNames] = {
    **OPENAI_NAMES,
    DeltaKind.REASONING: "response.reasoning",
}


@dataclass(frozen=True, slots=True)
class DefaultNames:
    """Of the events of requests that ask for no others."""

    names: EventNames


class ResponseEvents:
    """Writes the events of one response; each method gives whole events, ready to send.

    With `starting_after`, events up to that number are counted but left out.
    """

    def __init__(
        self,
        head: Json,
        starting_after: int = -1,
        names: EventNames = OPENAI_NAMES,
        seal: Seal | None = None,
        figures: StreamFigures | None = None,
    ) -> None:
        self._head = head
        self._figures = figures
        self._has_begun = True  # not so while `response.in_progress` waits for the prompt
        self._names = names
        self._starting_after = starting_after
        self._number = 0
        self._output = Output(head, seal)
        self._delta_start = b""  # of the open item's delta events, up to the number
        self._delta_middle = b""

    def begin(self) -> bytes:
        events = self._lifecycle("created", self._head)
        if self._head["status"] == "queued":
            events += self._lifecycle("queued", self._head)
        self._has_begun = self._figures is None or not self._figures.waits
        return events + self._started() if self._has_begun else events

    def _started(self) -> bytes:
        self._has_begun = True
        progress = self._figures.progress() if self._figures else {}
        started = {**self._head, "status": "in_progress"}
        return self._lifecycle("in_progress", started, progress)

    def without_output(self, document: Json) -> bytes:
        """All events of a response whose prompt alone was wanted."""
        return self._lifecycle("created", self._head) + self._lifecycle("completed", document)

    def add(self, pieces: Sequence[Piece]) -> bytes:
        started = b"" if self._has_begun or not pieces else self._started()
        return started + b"".join(self._add(piece) for piece in pieces)

    def end(self, document: Json) -> bytes:
        """The events that close the open item and say how the response ended."""
        status = document["status"]
        closing = b"" if self._has_begun else self._started()
        closing += self._close("completed" if status == "completed" else "incomplete")
        if document["error"]:
            closing += self._event("error", {**document["error"], "param": None})
        # The published events have none for a cancelled response.
        name = "incomplete" if status == "cancelled" else status
        timings = self._figures.timings() if self._figures else {}
        return closing + self._lifecycle(name, document, timings)

    def error(self, failure: ErrorAnswer) -> bytes:
        """The event by which the stream, not the response, ends."""
        body = {"code": failure.kind.code, "message": failure.message, "param": failure.param}
        # With the number of the event before it: what follows that one is still to be had.
        self._number -= 1
        self._starting_after = min(self._starting_after, self._number - 1)
        return self._event("error", body)

    def _add(self, piece: Piece) -> bytes:
        if piece.kind in _HOSTED:
            return self._add_hosted(piece)
        if piece.kind is DeltaKind.COMPACTION:
            return self._add_compacted(piece)
        opening = b""
        if self._output.begins_item(piece):
            opening = self._close("completed") + self._open(self._output.open(piece))
        if not piece.text:
            return opening
        item = self._output.items[-1]
        item.add(piece)
        if not isinstance(item, Item):
            return opening
        number = self._number
        self._number = number + 1
        if number <= self._starting_after:
            return opening
        text = _encode(piece.text)
        if item.kind is DeltaKind.CONTENT:
            logprobs = b"[]" if piece.logprobs is None else _encode(piece.logprobs)
            text += b',"logprobs":' + logprobs
        if self._figures is not None and (timings := self._figures.timings()):
            text += b"," + _encode(timings)[1:-1]
        return b"%b%b%d%b%b}\n\n" % (opening, self._delta_start, number, self._delta_middle, text)

    def _add_compacted(self, piece: Piece) -> bytes:
        closing, item = self._close("completed"), self._output.compact(piece)
        place = {"output_index": item.index}
        added = self._event("response.output_item.added", {**place, "item": item.opened()})
        doing = self._event("response.compaction.compacting", {"item_id": item.id, **place})
        item_done = {**place, "item": item.closed("completed")}
        return closing + added + doing + self._event("response.output_item.done", item_done)

    def _add_hosted(self, piece: Piece) -> bytes:
        if piece.kind is DeltaKind.HOSTED_RESULT:
            self._output.add(piece)
            return self._close_hosted("completed")
        closing, item = self._close("completed"), self._output.host(piece)
        body = {"output_index": item.index, "item": item.opened()}
        opening = self._event("response.output_item.added", body)
        return closing + opening + self._on_hosted(item, item.started())

    def _on_hosted(self, item: HostedItem, events: Sequence[Event]) -> bytes:
        place = {"item_id": item.id, "output_index": item.index}
        return b"".join(self._event(name, {**place, **body}) for name, body in events)

    def _open(self, item: Item | TypedItem) -> bytes:
        if isinstance(item, TypedItem):
            return b""  # told at its end
        name = self._names[item.kind] + ".delta"
        place = _encode({"item_id": item.id, **_place(item)})[1:-1]
        self._delta_start = b'event: %b\ndata: {"type":"%b","sequence_number":' % (
            name.encode(),
            name.encode(),
        )
        self._delta_middle = b',%b,"delta":' % place
        events = self._event(
            "response.output_item.added", {"output_index": item.index, "item": item.opened()}
        )
        if item.is_call:
            return events
        return events + self._on_item("response.content_part.added", item, {"part": item.part("")})

    def _close(self, status: ItemStatus) -> bytes:
        """The events that end the open item, if there is one."""
        if not self._output.items:
            return b""
        item = self._output.items[-1]
        if isinstance(item, HostedItem):
            return b"" if item.has_ended else self._close_hosted(status)
        if isinstance(item, TypedItem):
            return self._whole(item, status)
        if isinstance(item, CompactedItem):
            return b""  # it came whole
        done = self._names[item.kind] + ".done"
        if item.is_call:
            events = self._on_item(done, item, {item.text_field: item.text})
        else:
            is_text = item.kind is DeltaKind.CONTENT
            logprobs = {"logprobs": item.logprobs} if is_text else {}
            events = self._on_item(done, item, {"text": item.text, **logprobs})
            for index, cited in enumerate(item.annotations(item.text)):
                body = {"annotation_index": index, "annotation": cited}
                events += self._on_item("response.output_text.annotation.added", item, body)
            part = item.part(item.text, item.logprobs)
            events += self._on_item("response.content_part.done", item, {"part": part})
        body = {"output_index": item.index, "item": item.closed(status)}
        return events + self._event("response.output_item.done", body)

    def _whole(self, item: TypedItem, status: ItemStatus) -> bytes:
        place = {"output_index": item.index}
        added = self._event("response.output_item.added", {**place, "item": item.opened()})
        events = [self._event(name, {**place, **body}) for name, body in item.events()]
        done = self._event("response.output_item.done", {**place, "item": item.closed(status)})
        return b"".join((added, *events, done))

    def _close_hosted(self, status: ItemStatus) -> bytes:
        item = self._output.items[-1]
        assert isinstance(item, HostedItem)
        body = {"output_index": item.index, "item": item.closed(status)}
        ended = self._on_hosted(item, item.ended())
        return ended + self._event("response.output_item.done", body)

    def _on_item(self, name: str, item: Item, body: Json) -> bytes:
        return self._event(name, {"item_id": item.id, **_place(item), **body})

    def _lifecycle(self, name: str, document: Json, figures: Json | None = None) -> bytes:
        return self._event(f"response.{name}", {"response": document, **(figures or {})})

    def _event(self, name: str, body: Json) -> bytes:
        number, self._number = self._number, self._number + 1
        if number <= self._starting_after:
            return b""
        data = _encode({"type": name, "sequence_number": number, **body})
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _place(item: Item) -> Json:
    if item.is_call:
        return {"output_index": item.index}
    return {"output_index": item.index, "content_index": 0}
