"""One worker of a deployment, behind the contract of an engine that may die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Final

from engines.base import (
    NO_WAIT,
    EngineInfo,
    EngineRequest,
    EngineStats,
    ExpectedWait,
    OnEntered,
    TokenEvent,
    ignore,
)
from engines.errors import EngineDead, EngineDraining, EngineError, NotTaken
from parts.dynamo.network.runtime import new_context
from parts.dynamo.network.wire import (
    VERSION,
    Ask,
    Chunk,
    EventReader,
    State,
    asked,
    read_answer,
    written,
)

LOOK_S: Final = 1.0  # how often a worker is asked for its state
LOOK_AGAIN_S: Final = 2.0  # one that was lost: discovery knows it for a while after its death
SILENCE_S: Final = 30.0  # a worker that gives no state for so long is lost

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """In what all workers that one front uses are alike."""

    engine: str
    max_model_len: int
    vocab_size: int
    capabilities: Any
    version: str | int  # of our messages

    @classmethod
    def of(cls, state: State) -> Kind:
        info = state.info
        parts = (info.engine, info.max_model_len, info.vocab_size, info.capabilities)
        return cls(*parts, state.version)


class WorkerClient:
    """Implements engines.base.Engine over Dynamo's connection to one instance of an endpoint.

    It is asked for its state all the time. A request that loses its connection is EngineDead for
    all requests there; one that never came through is NotTaken.
    """

    def __init__(self, client: Any, instance_id: int, on_change: Callable[[], None]) -> None:
        self.instance_id = instance_id
        self.is_listed = True  # discovery knows it; a worker that ends is withdrawn first
        self.state: State | None = None  # the last it told
        self.is_of_our_kind = True
        self._client = client
        self._on_change = on_change
        self._num_lives = 0
        self._life = 0
        self._contexts: set[Any] = set()  # of running requests
        self._watching: asyncio.Task[None] | None = None

    @property
    def life(self) -> int:
        """Another number after each loss; 0 while it is lost."""
        return self._life

    @property
    def pace(self) -> float | None:
        return None

    @property
    def is_ready(self) -> bool:
        return self._life > 0 and self.is_listed and self.is_of_our_kind

    @property
    def info(self) -> EngineInfo:
        if self.state is None:
            raise EngineDead(f"worker {self.instance_id:x} has not answered yet")
        return self.state.info

    @property
    def kind(self) -> Kind | None:
        return None if self.state is None or self.state.version != VERSION else Kind.of(self.state)

    async def start(self) -> None:
        """Begin to ask for its state."""
        self._watching = asyncio.create_task(self._watch(), name=f"worker {self.instance_id:x}")

    async def generate(
        self, request: EngineRequest, on_entered: OnEntered = ignore
    ) -> AsyncGenerator[TokenEvent, None]:
        """Yield the request's events; raises what the worker says, EngineDead or NotTaken.

        `on_entered` is not called: the queue, and who asks, are the front's.
        """
        if not self.is_ready:
            raise NotTaken(f"worker {self.instance_id:x} takes no requests now")
        message, context, reader = asked(request), new_context(), EventReader()
        self._contexts.add(context)
        try:
            chunks = await self._reach(message, context)
            try:
                async for chunk in chunks:
                    event = reader.event(chunk)
                    yield event
                    if event.finish_reason is not None:
                        return
                reason = "its stream ended within an answer"
            except EngineDraining as error:
                raise NotTaken(str(error)) from error
            except EngineDead as error:  # its engine's end is its own
                reason = str(error)
            except EngineError:
                raise
            except Exception as error:  # Dynamo names a lost worker in a plain ValueError
                reason = str(error)
            self._lose(reason)
            raise EngineDead(f"worker {self.instance_id:x} is gone: {reason}")
        finally:
            self._contexts.discard(context)
            context.stop_generating()

    async def stats(self) -> EngineStats:
        """What it counted, when it was last asked."""
        return self.state.stats if self.state is not None else EngineStats()

    def expected_wait(self, tenant: str) -> ExpectedWait:
        """No wait: the queue is the front's."""
        return NO_WAIT

    async def check_health(self) -> None:
        if not self.is_ready:
            raise EngineDead(f"worker {self.instance_id:x} does not serve")

    async def drain(self) -> None:
        """Nothing: the front's queue refuses what is new, and waits for the rest."""

    async def stop(self) -> None:
        """End its requests here, and ask it no more."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        self._end_all()

    async def _reach(self, message: str, context: Any) -> Any:
        try:
            return await self._client.direct(
                message, self.instance_id, annotated=False, context=context
            )
        except Exception as error:  # it has no class of its own
            self._lose_unless_withdrawn(str(error))
            raise NotTaken(f"worker {self.instance_id:x} cannot be reached: {error}") from error

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S if self._life else LOOK_AGAIN_S)

    async def look(self) -> None:
        """Ask for its state; one that is withdrawn cannot be asked, and ends its answers."""
        if not self.is_listed:
            return
        try:
            async with asyncio.timeout(SILENCE_S):
                self.state = await self._ask()
        except TimeoutError:
            self._lose(f"it did not respond for {SILENCE_S:g} s")
        except Exception as error:
            self._lose_unless_withdrawn(str(error))
        else:
            if not self._life:
                self._num_lives += 1
                self._life = self._num_lives
                log.info("Worker %x of Dynamo serves", self.instance_id)
                self._on_change()

    async def _ask(self) -> State:
        context = new_context()
        try:
            chunks: Any = await self._client.direct(
                written(Ask()), self.instance_id, annotated=False, context=context
            )
            chunk: Chunk
            async for chunk in chunks:
                if isinstance(chunk, str) and isinstance(state := read_answer(chunk), State):
                    return state
        finally:
            context.stop_generating()
        raise EngineDead("it gave no state")

    def _lose_unless_withdrawn(self, reason: str) -> None:
        """It was not reached: it is lost, or has just left discovery and ends its answers."""
        self.is_listed = self.instance_id in self._client.instance_ids()
        if self.is_listed:
            self._lose(reason)
        else:
            self._on_change()

    def _lose(self, reason: str) -> None:
        if self._life:
            log.warning("Worker %x of Dynamo is lost: %s", self.instance_id, reason)
            self._life = 0
            self._end_all()
            self._on_change()

    def _end_all(self) -> None:
        for context in self._contexts:
            context.stop_generating()
