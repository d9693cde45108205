"""Responses that continue without their client: written to the store, readable from anywhere."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, aclosing

from service.answer.generation import Generation
from service.api.responses.document import Json, ResponseEnd, encode, end_of, ended, joined
from service.api.responses.output import Output
from service.api.responses.pieces import Piece, encode_pieces, pieces_of
from service.api.responses.request import Draft
from service.http.failures import INTERNAL, Failure, failure_of
from service.request import summary_of
from service.runtime import Runtime
from service.store.base import StoreError

log = logging.getLogger("harmonium.background")

LOST = "The server stopped before this response was complete; send the request again."
SAVE_S = 0.25  # how far the store may be behind, and how soon a stop from elsewhere is seen


class BackgroundRun:
    """Generates one response without its client; registered with the runtime while it lasts."""

    def __init__(self, runtime: Runtime, draft: Draft) -> None:
        self.draft = draft
        self.pieces: list[Piece] = []
        self.document: Json | None = None  # as it ended, once that is stored
        self._runtime = runtime
        self._generation = Generation(runtime.engine, draft.plan)
        self._num_saved = 0
        self._changed = asyncio.Event()
        self._generating: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._place = AsyncExitStack()  # in the engine, held from start() to the end

    @property
    def head(self) -> Json:
        return self.draft.head

    async def start(self) -> None:
        """Store the response as queued and begin.

        Raises StoreError when it cannot be stored, RequestError when there is no room for it,
        EngineDead while no engine answers: a client that has its answer cannot retry.
        """
        runtime = self._runtime
        await runtime.engine.stats()
        async with self._place as place:
            await place.enter_async_context(runtime.gate.admit(runtime.engine, self._generation))
            self._generation.max_wait_s = None  # no client waits for it
            record = self.draft.record(self.draft.head, is_final=False)
            await runtime.responses.put(record)
            self._place = place.pop_all()
        self._task = asyncio.create_task(self._run(), name=f"background {self.draft.id}")
        self._runtime.background[self.draft.id] = self

    async def stop(self) -> None:
        """Cancel the response unless it has ended; returns once its end is stored."""
        self._is_stopping = True
        if self._generating is not None:
            self._generating.cancel()
        await self.wait()

    async def wait(self) -> None:
        """Return when the end is stored."""
        assert self._task is not None
        await asyncio.wait((self._task,))

    async def after(self, num_pieces: int) -> tuple[list[Piece], Json | None]:
        """The pieces after the first `num`, as soon as there are some, and the response if it has
        ended."""
        while len(self.pieces) == num_pieces and self.document is None:
            self._changed.clear()
            await self._changed.wait()
        return self.pieces[num_pieces:], self.document

    async def _run(self) -> None:
        generating = self._generating = asyncio.create_task(self._generate())
        try:
            while not generating.done():
                await asyncio.wait((generating,), timeout=SAVE_S)
                if not await self._save():
                    self._is_stopping = True
                    generating.cancel()
                    await asyncio.wait((generating,))
            await self._finish(self._end_of(generating))
        finally:
            await self._place.aclose()
            if self.document is None:  # cut off itself: its readers must not wait for ever
                end = ResponseEnd("failed", self._runtime.clock(), failure=Failure(INTERNAL, LOST))
                output = Output(self.draft.head)
                output.extend(self.pieces)
                self.document = ended(self.draft.head, output, end)
            self._runtime.background.pop(self.draft.id, None)
            self._wake()

    async def _generate(self) -> None:
        with self._runtime.lifecycle.running():
            if self._is_stopping:
                return
            try:
                async with aclosing(self._generation.steps()) as steps:
                    async for step in steps:
                        self.pieces += pieces_of(step, self._generation.choices[0])
                        self._wake()
            finally:
                self._runtime.metrics.observe(self._generation)

    def _end_of(self, generating: asyncio.Task[None]) -> ResponseEnd:
        now = self._runtime.clock()
        if generating.cancelled() or self._is_stopping:
            return ResponseEnd("cancelled", now)
        error = generating.exception()
        if error is None:
            return end_of(self._generation, now)
        log.error("Response %s failed: %s: %s", self.draft.id, type(error).__name__, error)
        return ResponseEnd("failed", now, failure=failure_of(error))

    async def _save(self) -> bool:
        """Bring the store up to date; false when the run has to stop."""
        new, self._num_saved = self.pieces[self._num_saved :], len(self.pieces)
        try:
            is_wanted = await self._runtime.responses.extend(
                self.draft.id, encode_pieces(new) if new else b""
            )
        except StoreError as error:
            log.debug("Response %s is not being stored: %s", self.draft.id, error)
            self._num_saved -= len(new)
            return True
        return is_wanted

    async def _finish(self, end: ResponseEnd) -> None:
        await self._save()
        output = await joined(self.draft.head, self.pieces)
        document = ended(self.draft.head, output, end)
        try:
            await self._runtime.responses.finish(self.draft.id, encode(document))
        except StoreError as error:
            log.error("The end of response %s was not stored: %s", self.draft.id, error)
        self.document = document
        log.info("response %s: %s%s", self.draft.id, end.status, summary_of(self._generation))

    def _wake(self) -> None:
        self._changed.set()


async def end_background(runtime: Runtime, timeout_s: float) -> None:
    """Let the runs store how they ended; called at shutdown, when the engine has stopped."""
    runs = [asyncio.create_task(run.wait()) for run in runtime.background.values()]
    if runs:
        await asyncio.wait(runs, timeout=timeout_s)
