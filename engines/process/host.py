"""The engine process: `python -m engines.process.host --address ipc:///folder/engine.sock`.

The first line of stdin is the engine's spec as JSON, {"engine": ..., "options": {...}}.
After it stdin stays silent and open for as long as the parent lives
(engines/process/parent.py). stdout carries
wire.LifeMessage lines to the parent; everything meant for people goes to stderr.

SIGTERM finishes what runs and then exits; a second SIGTERM aborts it.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import logging
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

from engines import start_steps
from engines.base import Engine
from engines.factory import create
from engines.process.parent import Report, first_of, run_child
from engines.process.server import EngineServer
from engines.process.wire import HEARTBEAT_S, SWITCH_INTERVAL_S, Alive, Ready
from engines.spec import EngineSpec
from engines.threads import make_do

log = logging.getLogger("engines.process.host")


async def run(spec: EngineSpec, address: str, report: Report) -> None:
    """Serve an engine until SIGTERM; raises EngineError when it cannot start or dies."""
    server = EngineServer(address)
    try:
        await first_of(_beat(server, report), _serve(server, spec, report))
    finally:
        await server.close()


async def _serve(server: EngineServer, spec: EngineSpec, report: Report) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    make_do()
    start_steps.begin(f"loading engine {spec.engine}")
    gc.disable()  # what is imported stays: to look for garbage in it costs a tenth of the import
    engine = await asyncio.to_thread(create, spec)  # importing an engine's library takes seconds
    gc.freeze()
    gc.enable()
    start_steps.begin("loading the model")
    await engine.start()
    _spare_the_collector()
    terminations = asyncio.Semaphore(0)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, terminations.release)
    server.serve(engine)
    report(Ready())
    log.info("The engine %r is ready: %s", spec.engine, start_steps.end())
    await first_of(_watch(engine), _terminated(terminations))
    await first_of(server.drain(), _terminated(terminations))
    await server.close()
    await engine.stop()


def _spare_the_collector() -> None:
    """What a library and a loaded model are made of stays; only what requests leave is looked at.

    Each full collection would walk through it, in one turn of the loop, while all streams wait:
    100 ms with PyTorch.
    """
    gc.collect()  # what loading left may hold memory of the device
    gc.freeze()


async def _terminated(terminations: asyncio.Semaphore) -> None:
    await terminations.acquire()


async def _beat(server: EngineServer, report: Report) -> None:
    while True:
        report(Alive(*await server.progress(), start_steps.current()))
        server.beat()
        await asyncio.sleep(HEARTBEAT_S)


async def _watch(engine: Engine) -> None:
    while True:
        await engine.check_health()  # raises EngineDead, which ends this process
        await asyncio.sleep(HEARTBEAT_S)


def _clean_up(address: str) -> None:
    """Remove what a killed parent could not remove."""
    log.error("The parent process ended; stopping the engine")
    shutil.rmtree(Path(address.removeprefix("ipc://")).parent, ignore_errors=True)


def main() -> int:
    """Run the engine process; the exit status is 0 only after a wanted end."""
    parser = argparse.ArgumentParser(prog="python -m engines.process.host", description=__doc__)
    parser.add_argument("--address", required=True, help="ipc:// address to serve on")
    parser.add_argument("--log-level", default="INFO", help="minimum level logged to stderr")
    arguments = parser.parse_args()
    faulthandler.enable()
    return run_child(
        EngineSpec,
        lambda spec, report: run(spec, arguments.address, report),
        log_level=lambda spec: arguments.log_level,
        clean_up=partial(_clean_up, arguments.address),
    )


if __name__ == "__main__":
    sys.exit(main())
