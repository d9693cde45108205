"""HTTP answers of the responses routes that last: whole, streamed, and followed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from service.answer.generation import Generation
from service.api.responses.document import encode
from service.api.responses.request import Draft
from service.api.responses.writing import Writing
from service.http.failures import Failure
from service.http.streaming import (
    SSE_HEADERS,
    DataEvents,
    EventStream,
    GenerationResponse,
    LiveResponse,
    send_json,
)
from service.runtime import Runtime


class WholeResponse(GenerationResponse):
    """Sends nothing before the response has ended."""

    def __init__(self, runtime: Runtime, draft: Draft) -> None:
        super().__init__(runtime, Generation(runtime.engine, draft.plan))
        self._writing = Writing(runtime, draft, self._generation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        await self._writing.abandon()

    async def _respond(self, send: Send) -> None:
        async with aclosing(self._generation.steps()) as steps:
            async for step in steps:
                self._writing.take(step)
        await self._writing.settle(None)
        await send_json(send, encode(self._writing.document))


class StreamedResponse(EventStream):
    """Events as they come; the last one is sent when the response can be retrieved."""

    def __init__(self, runtime: Runtime, draft: Draft) -> None:
        generation = Generation(runtime.engine, draft.plan)
        self._writing = Writing(runtime, draft, generation)
        super().__init__(runtime, generation, self._writing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        await self._writing.abandon()

    async def _settle(self, failure: Failure | None) -> None:
        await self._writing.settle(failure)


class FollowedEvents(LiveResponse):
    """Events of a response that is written elsewhere, or was; leaving does not disturb it."""

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
