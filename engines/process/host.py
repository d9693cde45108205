"""The engine process: `python -m engines.process.host --address ipc:///folder/engine.sock`.

The first line of stdin is the engine's spec as JSON, {"engine": ..., "options": {...}}.
After it stdin stays silent and open for as long as the parent lives: when it closes, the
process ends at once, so a killed parent leaves no engine behind. stdout carries
wire.LifeMessage lines to the parent; everything meant for people goes to stderr.

SIGTERM finishes what runs and then exits; a second SIGTERM aborts it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.base import Engine
from engines.errors import EngineError, EngineStartError
from engines.factory import create
from engines.process.server import EngineServer
from engines.process.wire import (
    HEARTBEAT_S,
    Alive,
    Fatal,
    LifeMessage,
    Ready,
)
from engines.spec import EngineSpec

LOG_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"  # supervisor reads the level back

Report = Callable[[LifeMessage], None]

log = logging.getLogger("engines.process.host")


async def run(spec: EngineSpec, address: str, report: Report) -> None:
    """Serve an engine until SIGTERM; raises EngineError when it cannot start or dies."""
    server = EngineServer(address)
    try:
        await _first_of(_beat(server, report), _serve(server, spec, report))
    finally:
        await server.close()


async def _serve(server: EngineServer, spec: EngineSpec, report: Report) -> None:
    engine = await asyncio.to_thread(create, spec)  # importing an engine's library takes seconds
    await engine.start()
    terminations = asyncio.Semaphore(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, terminations.release)
    server.serve(engine)
    report(Ready())
    log.info("The engine %r is ready", spec.engine)
    await _first_of(_watch(engine), _terminated(terminations))
    await _first_of(server.drain(), _terminated(terminations))
    await server.close()
    await engine.stop()


async def _terminated(terminations: asyncio.Semaphore) -> None:
    await terminations.acquire()


async def _beat(server: EngineServer, report: Report) -> None:
    while True:
        report(Alive(*await server.progress()))
        server.beat()
        await asyncio.sleep(HEARTBEAT_S)


async def _watch(engine: Engine) -> None:
    while True:
        await engine.check_health()  # raises EngineDead, which ends this process
        await asyncio.sleep(HEARTBEAT_S)


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Return or raise as the first of them does, and cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reporter() -> Report:
    """Claim stdout for reports; from here on prints of any library go to stderr."""
    descriptor = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(message: LifeMessage) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone; its watcher acts
            os.write(descriptor, msgspec.json.encode(message) + b"\n")

    return report


def _read_spec() -> EngineSpec:
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
        line += byte
    try:
        return msgspec.json.decode(bytes(line), type=EngineSpec)
    except msgspec.DecodeError as error:
        raise EngineStartError(f"the first line of stdin is not an engine spec: {error}") from None


def _follow_parent(address: str) -> None:
    """Wait in a thread, which a hung loop cannot stop, until the parent is gone; then end."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    log.error("The parent process is gone; ending the engine")
    socket_file = Path(address.removeprefix("ipc://"))
    with contextlib.suppress(OSError):
        shutil.rmtree(socket_file.parent / "suspects", ignore_errors=True)
        socket_file.unlink(missing_ok=True)
        socket_file.parent.rmdir()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # and the engine's own workers
    os._exit(1)


def _run_reporting(spec: EngineSpec, address: str, report: Report) -> int:
    try:
        asyncio.run(run(spec, address, report))
    except EngineError as error:
        report(Fatal(error.code, str(error)))
        return 1
    except Exception as error:
        log.exception("The engine process failed")
        report(Fatal(EngineStartError.code, f"{type(error).__name__}: {error}"))
        return 1
    return 0


def main() -> int:
    """Run the process; the exit status is 0 only after a wanted end."""
    parser = argparse.ArgumentParser(prog="python -m engines.process.host", description=__doc__)
    parser.add_argument("--address", required=True, help="ipc:// address to serve on")
    parser.add_argument("--log-level", default="INFO", help="the least level logged to stderr")
    arguments = parser.parse_args()
    faulthandler.enable()
    report = _reporter()
    logging.basicConfig(level=arguments.log_level, format=LOG_FORMAT, stream=sys.stderr)
    logging.captureWarnings(True)
    try:
        spec = _read_spec()
    except EngineStartError as error:
        report(Fatal(error.code, str(error)))
        return 1
    follow = threading.Thread(target=_follow_parent, args=[arguments.address], daemon=True)
    follow.start()
    return _run_reporting(spec, arguments.address, report)


if __name__ == "__main__":
    sys.exit(main())
