"""Responses that run a generation: whole, or as server-sent events.

A client that disconnects cancels the work here and nowhere else: the task that reads
the engine's iterator is cancelled, which closes the iterator, which aborts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.answer.choice import ChoiceStep
from service.answer.generation import Generation
from service.http.failures import ErrorAnswer, ended_by
from service.runtime import Runtime
from service.work import in_thread

log = logging.getLogger(__name__)

SEND_BODY: Final = "harmonium.send_body"  # in an ASGI scope: sends past every layer to the server

# A comment, which clients pass over: the engine died, and the answer continues on another.
_RESTARTED: Final = b": engine restarted, the answer continues\n\n"

SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # proxies must not collect the events
)


class Encoder(Protocol):
    """Turns the steps of a generation into one API's events; methods give bytes ready to send."""

    keep_alive: bytes  # sent while nothing comes
    terminator: bytes  # ends every stream, also after an error

    def begin(self) -> bytes:
        """The events before the first step."""

    def step(self, step: ChoiceStep) -> bytes: ...

    def end(self) -> bytes:
        """The events after the last step."""

    def error(self, failure: ErrorAnswer) -> bytes:
        """The event of an error after the first event."""


class DataEvents:
    """What the streams of all of OpenAI's routes have alike."""

    keep_alive = b": keep-alive\n\n"
    terminator = b"data: [DONE]\n\n"

    def error(self, failure: ErrorAnswer) -> bytes:
        """The event of an error after the first event; before it, an error is an HTTP answer."""
        return b"data: " + msgspec.json.encode(failure.body()) + b"\n\n"


def expose_server_send(app: ASGIApp) -> ASGIApp:
    """Streams write body chunks straight to the server; middlewares only need the response's
    start."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope[SEND_BODY] = send
        await app(scope, receive, send)

    return served


class LiveResponse(Response):
    """A response that is worked on only while its client stays connected."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._has_left = False  # the client
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._while_connected(receive, self._respond(send), send)

    async def _respond(self, send: Send) -> None:
        raise NotImplementedError

    async def _on_idle(self, send: Send) -> None:
        """Called when nothing ended for the keep-alive interval."""

    async def _until_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._has_left = True

    async def _while_connected(self, receive: Receive, work: Awaitable[None], send: Send) -> None:
        working = asyncio.ensure_future(work)
        leaving = asyncio.create_task(self._until_left(receive))
        pause_s = self._runtime.limits.sse_keepalive_s
        try:
            while not working.done() and not leaving.done():
                done, _ = await asyncio.wait(
                    (working, leaving), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    await self._on_idle(send)
        finally:
            leaving.cancel()
            working.cancel()
            await asyncio.wait((working, leaving))
        try:
            if not working.cancelled():
                working.result()
        finally:
            # Its error's traceback has this frame: else a cycle, left to the garbage collector.
            del working


class GenerationResponse(LiveResponse):
    """A response that admits, runs, counts and logs one generation."""

    def __init__(self, runtime: Runtime, generation: Generation) -> None:
        super().__init__(runtime)
        self._generation = generation
        self._has_logprobs = generation.plan.sampling.logprobs is not None

    def _forget(self, step: ChoiceStep) -> None:
        """Free what only this step needed."""
        if self._has_logprobs:
            self._generation.choices[step.index].forget_logprobs(step)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit the generation, answer with it, and count how it ended."""
        runtime, generation = self._runtime, self._generation
        with runtime.lifecycle.running():
            generation.plan.context.notes.generation = generation
            try:
                async with runtime.gate.admit(runtime.engine, generation):
                    await super().__call__(scope, receive, send)
            finally:
                runtime.metrics.observe(generation)


class WholeAnswer(GenerationResponse):
    """A generation answered as one JSON body, after its end."""

    def __init__(
        self,
        runtime: Runtime,
        generation: Generation,
        add: Callable[[ChoiceStep], None],
        body: Callable[[], bytes],
    ) -> None:
        super().__init__(runtime, generation)
        self._add = add
        self._body = body

    async def _respond(self, send: Send) -> None:
        async with aclosing(self._generation.steps()) as steps:
            async for step in steps:
                self._add(step)
                self._forget(step)
        if self._generation.plan.sampling.prompt_logprobs is None:
            body = self._body()
        else:  # a hundred thousand tokens take seconds
            body = await in_thread(self._body)
        await send_json(send, body)


class EventStream(GenerationResponse):
    """A generation answered as server-sent events; an error before the first is no stream."""

    head: tuple[tuple[bytes, bytes], ...] = SSE_HEADERS
    restarted: bytes = _RESTARTED  # before the first event of an answer that continues

    def __init__(self, runtime: Runtime, generation: Generation, encoder: Encoder) -> None:
        super().__init__(runtime, generation)
        self._encoder = encoder
        self._has_begun = False
        self._is_silent = True  # since the last look
        self._num_restarts = 0  # that the client knows of

    async def _respond(self, send: Send) -> None:
        failure = None
        try:
            await self._send_steps(send)
        except Exception as error:
            if not self._has_begun:
                raise
            failure = self._failure(error)
        await self._settle(failure)
        last = self._encoder.error(failure) if failure else self._encoder.end()
        await send({"type": "http.response.body", "body": last + self._encoder.terminator})

    async def _settle(self, failure: ErrorAnswer | None) -> None:
        """Finish the work that must precede the end of the stream."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream past the layers between this response and the server.

        Each looks at the beginning of an answer, none at its body.
        """
        self._send_body = scope[SEND_BODY]
        await super().__call__(scope, receive, send)

    async def _send_steps(self, send: Send) -> None:
        encode, send_body = self._encoder.step, self._send_body
        async with aclosing(self._generation.steps()) as steps:
            async for step in steps:
                if not self._has_begun:
                    await self._begin(send)
                body = encode(step)
                if self._generation.num_restarts != self._num_restarts:
                    self._num_restarts = self._generation.num_restarts
                    body = self.restarted + body
                self._forget(step)
                self._is_silent = False
                await send_body({"type": "http.response.body", "body": body, "more_body": True})
                if self._has_left:  # else everything queued would still be encoded, for no reader
                    raise asyncio.CancelledError

    async def _begin(self, send: Send) -> None:
        self._has_begun = True
        body = self._encoder.begin()  # before any wait, so that no step is encoded first
        await send({"type": "http.response.start", "status": 200, "headers": self.head})
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _on_idle(self, send: Send) -> None:
        """Send a keep-alive, and the head before it; but none while the queue may still refuse.

        Clients send a request again that got 503 with Retry-After, and none that ended with an
        event of an error after 200. So the head waits for the first token, or for the engine to
        take the request: from then on long prompts need keep-alives, or a proxy would cut them. A
        queue's limit is shorter than the patience of proxies (30 s; nginx and AWS have 60 s).
        """
        if not self._has_begun and self._generation.may_be_refused():
            return
        if self._is_silent:
            if not self._has_begun:
                await self._begin(send)
            body = self._encoder.keep_alive
            await send({"type": "http.response.body", "body": body, "more_body": True})
        self._is_silent = True

    def _failure(self, error: Exception) -> ErrorAnswer:
        failure = ended_by(error)
        log.error(
            "Request %s failed in mid-stream: %s: %s",
            self._generation.plan.context.id,
            type(error).__name__,
            error,
            exc_info=failure.kind.status == 500,
        )
        return failure


async def send_json(send: Send, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
