"""A response while it is written for a client that waits, whole, streamed or followed."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from starlette.types import Receive, Scope, Send

from parts.responses.answer.document import Json, ResponseEnd, encode, end_of, ended, joined
from parts.responses.answer.events import ResponseEvents
from parts.responses.answer.figures import StreamFigures
from parts.responses.answer.pieces import Piece, encode_pieces, pieces_of
from parts.responses.conversations.log import add_turn
from parts.responses.request import Draft, ResponseBegun
from parts.responses.stored import store_of
from service.answer.choice import ChoiceStep
from service.answer.generation import Generation
from service.http.failures import ErrorAnswer
from service.http.streaming import (
    SSE_HEADERS,
    DataEvents,
    EventStream,
    GenerationResponse,
    LiveResponse,
    send_json,
)
from service.runtime import Runtime
from service.store.base import StoreError

log = logging.getLogger(__name__)


async def keep(
    runtime: Runtime, draft: ResponseBegun, document: Json, pieces: Sequence[Piece] = ()
) -> None:
    """Store a response that has ended, and hold it for the next turn, where that is wanted."""
    is_good = document["status"] in ("completed", "incomplete")
    if document.get("conversation"):
        try:
            await add_turn(runtime, document, msgspec.json.encode(draft.input))
        except StoreError as error:
            log.debug("Response %s was not added to its conversation: %s", draft.id, error)
            document["conversation"] = None
    if not draft.is_stored and not (draft.hold and is_good):
        return
    record = draft.record(document, is_final=True)
    if draft.hold is not None and is_good:
        draft.hold(record)
    if not draft.is_stored:
        return
    try:
        await store_of(runtime).put(record, encode_pieces(pieces))
    except StoreError as error:
        # The answer itself is whole; only what was said of keeping it is not true.
        log.debug("Response %s was not stored: %s", draft.id, error)
        document["store"] = False


class ResponseWriter(DataEvents):
    """Writes one response for a client that waits: encodes its stream and stores it."""

    def __init__(self, runtime: Runtime, draft: Draft, generation: Generation) -> None:
        self._runtime = runtime
        self._draft = draft
        self._generation = generation
        self._events = ResponseEvents(
            draft.head, names=draft.names, seal=draft.seal, figures=_figures_of(draft, generation)
        )
        self._pieces: list[Piece] = [*draft.pieces]
        self._document: Json | None = None

    def begin(self) -> bytes:
        return self._events.begin() + self._events.add(self._draft.pieces)

    def step(self, step: ChoiceStep) -> bytes:
        return self._events.add(self.take(step))

    def take(self, step: ChoiceStep) -> list[Piece]:
        pieces = pieces_of(step, self._generation.choices[0])
        self._pieces += pieces
        return pieces

    async def settle(self, failure: ErrorAnswer | None) -> None:
        """Decide how the response ended and store it, before the client learns of the end."""
        now = self._runtime.clock()
        if failure is None:
            await self._save(end_of(self._generation, now, self._draft.cost))
        else:
            await self._save(ResponseEnd("failed", now, failure=failure))

    async def abandon(self) -> None:
        """Store the unfinished response as cancelled, because the client disconnected."""
        if self._document is None and self._pieces:
            await self._save(ResponseEnd("cancelled", self._runtime.clock()))

    def end(self) -> bytes:
        return self._events.end(self.document)

    def error(self, failure: ErrorAnswer) -> bytes:
        """The events of an end by an error, which the response holds."""
        return self.end()

    @property
    def document(self) -> Json:
        """The whole response, once it has ended."""
        assert self._document is not None
        return self._document

    async def _save(self, end: ResponseEnd) -> None:
        output = await joined(self._draft.head, self._pieces, self._draft.seal)
        document = self._document = ended(self._draft.head, output, end)
        await keep(self._runtime, self._draft, document, self._pieces)


def _figures_of(draft: Draft, generation: Generation) -> StreamFigures | None:
    if not draft.shows_timings and not draft.shows_progress:
        return None
    return StreamFigures(generation, draft.shows_timings, draft.shows_progress)


class WholeResponse(GenerationResponse):
    """A response answered as one JSON body, after its end."""

    def __init__(self, runtime: Runtime, draft: Draft) -> None:
        super().__init__(runtime, Generation(runtime.engine, draft.plan))
        self._writing = ResponseWriter(runtime, draft, self._generation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; if the client disconnects, the partial response is stored as cancelled."""
        await super().__call__(scope, receive, send)
        await self._writing.abandon()

    async def _respond(self, send: Send) -> None:
        async with aclosing(self._generation.steps()) as steps:
            async for step in steps:
                self._writing.take(step)
        await self._writing.settle(None)
        await send_json(send, encode(self._writing.document))


class StreamedResponse(EventStream):
    """A response answered as events; the last is sent when the response can be retrieved."""

    def __init__(self, runtime: Runtime, draft: Draft) -> None:
        generation = Generation(runtime.engine, draft.plan)
        self._writing = ResponseWriter(runtime, draft, generation)
        super().__init__(runtime, generation, self._writing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream; if the client disconnects, the partial response is stored as cancelled."""
        await super().__call__(scope, receive, send)
        await self._writing.abandon()

    async def _settle(self, failure: ErrorAnswer | None) -> None:
        await self._writing.settle(failure)


class FollowedEvents(LiveResponse):
    """The events of a response that another run writes or wrote; leaving does not disturb it."""

    def __init__(self, runtime: Runtime, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(runtime)
        self._events = events
        self._has_begun = False

    async def _respond(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        self._has_begun = True
        async with aclosing(self._events) as events:
            async for body in events:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": DataEvents.terminator})

    async def _on_idle(self, send: Send) -> None:
        if self._has_begun:
            body = DataEvents.keep_alive
            await send({"type": "http.response.body", "body": body, "more_body": True})
