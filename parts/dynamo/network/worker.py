"""`python -m parts.dynamo.network.worker`: an engine process as a worker of Dynamo.

The first line of stdin is a WorkerSpec as JSON; reports go to stdout, as an engine process's do.
The engine runs in a process of its own: this one needs Dynamo's library and no engine's. It ends
with its engine, withdrawn from discovery first, and its parent starts another.

SIGTERM withdraws it and lets running answers end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Final

import msgspec

from engines.base import EngineRequest
from engines.errors import EngineDead, EngineError, InvalidRequest
from engines.process.client import EngineClient
from engines.process.parent import Report, first_of, run_child
from engines.process.wire import HEARTBEAT_S, Alive, Ready
from parts.dynamo.handover.spec import prefilled_at
from parts.dynamo.network.prefillers import Prefillers
from parts.dynamo.network.runtime import Discovery, connect
from parts.dynamo.network.wire import (
    Ask,
    Chunk,
    EventWriter,
    Failure,
    State,
    read_question,
    written,
)

_LOOK_S: Final = 0.05

log = logging.getLogger("parts.dynamo.network.worker")


class WorkerSpec(msgspec.Struct, frozen=True):
    """What a worker gets at its start."""

    address: str  # of its engine process
    endpoint: str
    discovery: Discovery
    prefill_endpoint: str | None = None  # of the workers that compute its prompts
    handover: str | None = None  # where its engine hands K/V over
    log_level: str = "INFO"


class Worker:
    """Answers the messages of fronts, and of workers that decode, with one engine."""

    def __init__(
        self, engine: EngineClient, prefillers: Prefillers | None, handover: str | None
    ) -> None:
        """`prefillers` compute prompts for it; `handover`: where its engine hands K/V over."""
        self._engine, self._prefillers, self._handover = engine, prefillers, handover

    async def answer(self, given: Any, context: Any) -> AsyncGenerator[Chunk, None]:
        """Yield the answer to a message; Dynamo wants a parameter that is named `context`."""
        try:
            message = read_question(given)
            if isinstance(message, Ask):
                stats = await self._engine.stats()
                yield written(State(self._engine.info, stats, handover=self._handover))
                return
            async for chunk in self._run(message.whole, context):
                yield chunk
        except EngineError as error:
            yield written(Failure.of(error))
        except ValueError as error:  # msgspec's errors are such too
            yield written(Failure.of(InvalidRequest(f"the message cannot be read: {error}")))

    async def _run(self, request: EngineRequest, context: Any) -> AsyncGenerator[Chunk, None]:
        """Run a request; the engine learns at once when the front wants no more.

        Events that waited for Dynamo come as one (EngineClient).
        """
        turn = None if self._prefillers is None else await self._prefillers.turn(request)
        request = replace(request, extras=prefilled_at(None if turn is None else turn.endpoint))
        writer, events = EventWriter(), self._engine.generate(request)
        next_event: asyncio.Task[Any] | None = None

        def stop(_: asyncio.Future[bool]) -> None:
            if next_event is not None:
                next_event.cancel()
            else:  # the last chunk is with Dynamo, which may never ask for another
                closing.append(asyncio.ensure_future(events.aclose()))

        closing: list[asyncio.Future[None]] = []
        stopped = asyncio.ensure_future(context.async_killed_or_stopped())
        stopped.add_done_callback(stop)
        try:
            while not context.is_stopped():
                next_event = asyncio.ensure_future(anext(events))
                event = await next_event
                next_event = None
                if turn is not None:
                    turn.end(event.num_cached_tokens)
                yield writer.chunk(event)
                if event.finish_reason is not None:
                    return
        except (asyncio.CancelledError, StopAsyncIteration):
            if not context.is_stopped():
                raise
        finally:
            if turn is not None:
                turn.end()
            stopped.remove_done_callback(stop)
            stopped.cancel()
            if next_event is not None and not next_event.done():
                next_event.cancel()
                await asyncio.wait([next_event])
            await asyncio.gather(*closing)
            await events.aclose()


async def run(spec: WorkerSpec, report: Report) -> None:
    """Serve until SIGTERM; raises EngineError when it cannot start, and when its engine dies."""
    engine = EngineClient(spec.address)
    await engine.start()
    runtime = connect(spec.discovery)
    endpoint = runtime.endpoint(spec.endpoint)
    prefillers = None
    if spec.prefill_endpoint is not None:
        prefillers = Prefillers(spec.prefill_endpoint, spec.discovery)
        await prefillers.join(runtime)
    worker = Worker(engine, prefillers, spec.handover)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runtime.shutdown)
    serving = asyncio.ensure_future(endpoint.serve_endpoint(worker.answer))
    watching = asyncio.create_task(_watch(engine))
    announcing = asyncio.create_task(_announce(endpoint, report))
    try:
        await asyncio.wait([serving, watching], return_when=asyncio.FIRST_COMPLETED)
        runtime.shutdown()
        await serving
        if watching.done():
            watching.result()
    finally:
        for task in (watching, announcing):
            task.cancel()
        await asyncio.gather(watching, announcing, return_exceptions=True)
        if prefillers is not None:
            await prefillers.stop()
        await engine.stop()


async def _watch(engine: EngineClient) -> None:
    """Raise EngineDead when the engine is another one, or gone."""
    life = engine.life
    while engine.life == life and engine.is_ready:
        await asyncio.sleep(_LOOK_S)
    raise EngineDead("the engine of this worker ended; the worker ends with it")


async def _announce(endpoint: Any, report: Report) -> None:
    """Report that the worker is ready once discovery has it."""
    client = await endpoint.client()
    while endpoint.connection_id() not in client.instance_ids():
        await asyncio.sleep(_LOOK_S)
    report(Ready())
    log.info("Worker %x of Dynamo is ready", endpoint.connection_id())


async def _beat(report: Report) -> None:
    while True:
        report(Alive())
        await asyncio.sleep(HEARTBEAT_S)


def main() -> int:
    return run_child(
        WorkerSpec,
        lambda spec, report: first_of(_beat(report), run(spec, report)),
        log_level=lambda spec: spec.log_level,
    )


if __name__ == "__main__":
    sys.exit(main())
