"""POST /v1/responses/compact, and `compaction_trigger`: a response that is one compaction item."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Send

from parts.responses.answer.document import Json, ResponseEnd, encode, ended, joined, usage_json
from parts.responses.answer.events import ResponseEvents
from parts.responses.answer.output import item_key
from parts.responses.answer.pieces import Piece
from parts.responses.compacting.history import TRIGGER, user_messages
from parts.responses.conversation import compact, history_of
from parts.responses.items import listed, outputs_of
from parts.responses.request import ResponseBegun, begun_response
from parts.responses.schemas.request import CompactRequest, ResponseRequest
from parts.responses.store.base import PastRecords
from parts.responses.stored import store_of
from parts.responses.tools.offering import check_names
from parts.responses.writing import keep
from service.api.common.foreign import note_unread
from service.compaction import Summary
from service.errors import RequestError
from service.http.failures import ended_by
from service.http.streaming import SSE_HEADERS, DataEvents, LiveResponse, send_json
from service.request import RequestContext
from service.runtime import Runtime


async def compacted_response(
    request: CompactRequest, runtime: Runtime, context: RequestContext
) -> Json:
    """The whole conversation as the input of the next response; raises RequestError."""
    check_names(request)
    id = f"resp_{runtime.new_id()}"
    shown = listed(request.input, id) if request.input else []
    if not shown and request.previous_response_id is None:
        raise RequestError("input or previous_response_id is required.", param="input")
    note_unread(context, outputs_of(request.input))
    history = await history_of(request, shown, runtime, context, store_of(runtime))
    said = user_messages(history.groups)
    _, piece, summary = await compact(request, history, runtime, context)
    key = item_key(id)
    messages = [
        {
            "id": item.get("id") or f"msg_{key}{index:04x}",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": item["content"],
        }
        for index, item in enumerate(said)
    ]
    item = {
        "id": f"cmp_{key}{len(said):04x}",
        "type": "compaction",
        "encrypted_content": piece.text,
    }
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": int(runtime.clock()),
        "output": [*messages, item],
        "usage": usage_json(summary.cost),
    }


def is_triggered(request: ResponseRequest) -> bool:
    """Whether the request ends with a trigger; raises RequestError for one elsewhere."""
    items = [] if isinstance(request.input, str) else request.input
    places = [index for index, item in enumerate(items) if item.type == TRIGGER]
    if not places:
        return False
    if places != [len(items) - 1]:
        raise RequestError(
            f"input[{places[0]}] is a compaction_trigger, which must be the last item.",
            param=f"input[{places[0]}]",
        )
    if request.background:
        raise RequestError(
            "compaction_trigger cannot be combined with background: true; send one of them.",
            param="background",
        )
    return True


async def triggered_response(
    request: ResponseRequest, runtime: Runtime, context: RequestContext, past: PastRecords | None
) -> TriggeredResponse:
    """The response to a trigger, before its summary is written; raises RequestError."""
    check_names(request)
    id = f"resp_{runtime.new_id()}"
    shown = listed(request.input, id)
    note_unread(context, outputs_of(request.input))
    history = await history_of(request, shown, runtime, context, past or store_of(runtime))
    begun = await begun_response(request, id, shown, runtime, context)

    async def write() -> tuple[Piece, Summary]:
        _, piece, summary = await compact(request, history, runtime, context)
        return piece, summary

    return TriggeredResponse(runtime, begun, write, is_streamed=bool(request.stream))


class TriggeredResponse(LiveResponse):
    """A response whose output is one compaction item."""

    def __init__(
        self,
        runtime: Runtime,
        begun: ResponseBegun,
        write: Callable[[], Awaitable[tuple[Piece, Summary]]],
        *,
        is_streamed: bool,
    ) -> None:
        super().__init__(runtime)
        self.begun = begun
        self._write = write
        self._is_streamed = is_streamed
        self._has_begun = False

    async def _respond(self, send: Send) -> None:
        pieces: list[Piece] = []
        try:
            piece, summary = await self._write()
        except Exception as error:
            if not self._has_begun:
                raise
            end = ResponseEnd("failed", self._runtime.clock(), failure=ended_by(error))
        else:
            pieces = [piece]
            end = ResponseEnd("completed", self._runtime.clock(), usage_json(summary.cost))
        head = self.begun.head
        document = ended(head, await joined(head, pieces), end)
        await keep(self._runtime, self.begun, document, pieces)
        if not self._is_streamed:
            await send_json(send, encode(document))
            return
        await self._begin(send)
        body = self._events.add(pieces) + self._events.end(document) + DataEvents.terminator
        await send({"type": "http.response.body", "body": body})

    async def _begin(self, send: Send) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        self._events = ResponseEvents(self.begun.head, names=self.begun.names)
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        body = self._events.begin()
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _on_idle(self, send: Send) -> None:
        if not self._is_streamed:
            return
        await self._begin(send)
        body = DataEvents.keep_alive
        await send({"type": "http.response.body", "body": body, "more_body": True})
