"""`harmonium serve`: decide, start the engine, answer HTTP, drain.

The engine process is spawned before FastAPI is even imported: its own imports take
longest, and both go on side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import socket
import time
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

import uvloop

from engines.errors import EngineStartError
from engines.supervisor import EngineSupervisor
from profiles.errors import ProfileError
from service.lifecycle import Lifecycle
from service.listener import ListenError, listen, url_of
from service.responses.store import StoreError
from service.settings import Settings, engine_environment, flag_name
from service.startup import Launch, prepare, tell, warn_of_unknown_names
from service.stop_signal import StopSignal, first_of
from service.telemetry import logs

if TYPE_CHECKING:
    from service.server import ApiServer

log = logging.getLogger("harmonium")

FORCED = 130  # what a shell reports for Ctrl-C
_ENGINE_GRACE_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting but the secret ones."""
    for field, info in Settings.model_fields.items():
        if flag := flag_name(field):
            parser.add_argument(flag, metavar="VALUE", help=str(info.description))


def run(settings: Settings, started_at: float) -> int:
    """Serve until a signal comes; return the exit code."""
    logs.configure(settings.log_level, settings.jsonl_logging)
    log.info("Harmonium %s", version("harmonium"))
    warn_of_unknown_names()
    try:
        with listen(settings.server_host, settings.server_port) as listener:
            launch = prepare(settings)
            tell(launch)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_serve(settings, launch, listener, started_at))
    except (ListenError, ProfileError, EngineStartError, StoreError) as error:
        log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return FORCED


async def _serve(
    settings: Settings, launch: Launch, listener: socket.socket, started_at: float
) -> int:
    return await _Service(settings, launch, listener, started_at).run()


class _Service:
    """One run: the engine process, the API and what ends them."""

    def __init__(
        self, settings: Settings, launch: Launch, listener: socket.socket, started_at: float
    ) -> None:
        self._settings = settings
        self._launch = launch
        self._listener = listener
        self._started_at = started_at
        self._stop = StopSignal()
        self._supervisor = EngineSupervisor(launch.spec, environment=engine_environment())
        self._engine = self._supervisor.client()

    async def run(self) -> int:
        """Serve until a signal comes; nothing is left behind however it ends."""
        starting = asyncio.create_task(self._start_engine())
        try:
            # In a thread, so that this loop goes on to spawn the engine meanwhile.
            api = await asyncio.to_thread(import_module, "service.server")
            runtime = await asyncio.to_thread(
                api.build_runtime, self._settings, self._launch, self._supervisor, self._engine
            )
            await self._answer(api.ApiServer(runtime), runtime.lifecycle, starting)
        finally:
            starting.cancel()
            await asyncio.wait((starting,))
            await self._engine.stop()
            grace_s = 0.0 if self._stop.forced.is_set() else _ENGINE_GRACE_S
            await self._supervisor.stop(drain_timeout_s=grace_s, grace_s=grace_s)
        log.info("Stopped.")
        return FORCED if self._stop.forced.is_set() else 0

    async def _start_engine(self) -> None:
        await self._supervisor.start()
        await self._engine.start()

    async def _answer(
        self, server: ApiServer, lifecycle: Lifecycle, starting: asyncio.Task[None]
    ) -> None:
        async with server.listening(self._listener):
            if await first_of(self._stop.requested, starting):
                return
            await starting
            lifecycle.mark_ready()
            self._tell_ready()
            await self._stop.requested.wait()
            await server.drain(self._stop, self._settings.drain_grace_s)

    def _tell_ready(self) -> None:
        seconds = time.monotonic() - self._started_at
        url = url_of(self._listener)
        log.info("Ready after %.1f s: serving %s on %s", seconds, self._launch.served_name, url)
        log.info("Try it:\n\n%s\n", curl_line(url, self._launch.served_name, self._settings))


def curl_line(url: str, model: str, settings: Settings) -> str:
    """A first request, ready to paste into a shell."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.api_key_list else ""
    return (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d '{json.dumps(body)}'"
    )
