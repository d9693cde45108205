"""An API worker: `python -m service.run.worker`, started by `harmonium serve` alone.

It is the whole API in one process, on the parent's listener and the parent's engine. SIGTERM
drains it as it drains a server without workers; when the parent is gone, it ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import time
from functools import partial

import uvloop

from engines.fleet import Fleet
from engines.process.client import EngineClient
from engines.process.parent import Report, claim_stdout, follow_parent
from engines.process.stream import MOST_BYTES, MOST_BYTES_OF_ALL, Unread
from engines.process.wire import Alive, Fatal, Ready
from engines.shared_routes import MOST_ENGINES, SharedRoutes
from engines.threads import make_do
from service.admission.lifecycle import Lifecycle
from service.admission.shared_counts import SharedCounts
from service.run.accept import Shares
from service.run.messages import BEAT_S, ApiWorkerSpec, EngineNews
from service.run.server import ApiServer
from service.run.stop_signal import StopSignal
from service.run.termination import FORCED
from service.run.wiring import build_runtime
from service.settings.settings import secret_values
from service.shared_files import LIMITS, ROUTES, mapped
from service.telemetry import logs
from service.telemetry.shared import count_in_files
from service.work import in_thread

log = logging.getLogger(__name__)


class ApiWorker:
    """One run of an API worker, from its spec to its exit code."""

    def __init__(self, spec: ApiWorkerSpec, report: Report) -> None:
        self._spec = spec
        self._report = report
        self._news = EngineNews(
            ("the engine has not been started",) * len(spec.engine_addresses), began_at=time.time()
        )
        self._lifecycle: Lifecycle | None = None  # once there is a runtime
        self._is_engine_up = asyncio.Event()
        self._stop = StopSignal()
        num_workers = spec.settings.api_workers or 1
        self._unread = Unread(max(MOST_BYTES_OF_ALL // num_workers, MOST_BYTES))
        self._fleet = Fleet(
            [
                EngineClient(address, explain=partial(self._reason_of, number), unread=self._unread)
                for number, address in enumerate(spec.engine_addresses)
            ],
            _routes(spec),
        )

    @property
    def num_restarts(self) -> int:
        return self._news.num_restarts

    @property
    def download(self) -> tuple[int, int]:
        download = self._news.download
        return (download.have_bytes, download.total_bytes) if download else (0, 0)

    @property
    def is_starting(self) -> bool:
        return self._news.ready_at is None

    @property
    def start_s(self) -> float:
        return (self._news.ready_at or time.time()) - self._news.began_at

    def kill(self) -> int:
        pids = [pid for pid in self._news.pids if pid is not None]
        for pid in pids:
            log.warning("The engine, process id %d, is killed at a caller's request.", pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def learn(self, news: EngineNews) -> None:
        self._news = news
        if self._lifecycle is not None:
            self._lifecycle.waits_for = news.download.text if news.download else news.step
        if not any(news.reasons):
            self._is_engine_up.set()

    def _reason_of(self, number: int) -> str | None:
        return self._news.reasons[number]

    async def run(self, listener: socket.socket) -> int:
        spec = self._spec
        runtime = build_runtime(
            spec.settings,
            spec.launch,
            self,
            self._fleet,
            shared_folder=spec.shared_folder,
            counts=_counts(spec),
        )
        self._lifecycle = runtime.lifecycle
        self.learn(self._news)
        self._unread.on_pause = runtime.metrics.count_pause
        self._unread.on_cut = partial(runtime.metrics.count_slow_reader, "memory")
        shares = Shares(spec.shared_folder, spec.number)
        beating = asyncio.create_task(self._beat())
        starting = asyncio.create_task(self._start_engine())
        try:
            await ApiServer(runtime, shares).run(
                listener,
                self._stop,
                starting,
                on_ready=lambda: self._report(Ready()),
                is_successor=spec.is_successor,
                grace_s=spec.settings.drain_grace_s,
            )
        finally:
            for task in (beating, starting):
                task.cancel()
            await asyncio.wait((beating, starting))
            await self._fleet.stop()
            shares.close()
        return FORCED if self._stop.forced.is_set() else 0

    async def _start_engine(self) -> None:
        await self._is_engine_up.wait()
        await self._fleet.start()

    async def _beat(self) -> None:
        while True:
            self._report(Alive())
            await asyncio.sleep(BEAT_S)


def _routes(spec: ApiWorkerSpec) -> SharedRoutes | None:
    if spec.shared_folder is None or not 1 < len(spec.engine_addresses) <= MOST_ENGINES:
        return None
    return SharedRoutes(mapped(spec.shared_folder, ROUTES), spec.number)


def _counts(spec: ApiWorkerSpec) -> SharedCounts | None:
    if spec.shared_folder is None:
        return None
    return SharedCounts(spec.shared_folder / LIMITS, spec.number)


def main() -> int:
    report = claim_stdout()
    spec = ApiWorkerSpec.read(sys.stdin.fileno())
    settings = spec.settings
    logs.configure(
        settings.log_level, settings.jsonl_logging, secret_values(settings), is_brief=spec.is_brief
    )
    logs.choose(settings.access_log, settings.audit_log)
    if spec.shared_folder is not None:
        count_in_files(spec.number)
    try:
        with (
            socket.socket(fileno=spec.listener_fd) as listener,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_serve(spec, report, listener))
    except Exception as error:
        # The parent says it again, or for the first time, in its own log.
        log.debug("the worker ends", exc_info=True)
        report(Fatal(type(error).__name__, f"{error}"))
        return 1


async def _serve(spec: ApiWorkerSpec, report: Report, listener: socket.socket) -> int:
    worker = ApiWorker(spec, report)
    loop = asyncio.get_running_loop()

    def learn(line: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before us
            loop.call_soon_threadsafe(worker.learn, EngineNews.of(line))

    def clean_up() -> None:
        if spec.shared_folder is not None:
            shutil.rmtree(spec.shared_folder, ignore_errors=True)

    follow_parent(learn, clean_up)
    make_do()
    await in_thread(int)  # starts a thread: later there may be none to be had
    return await worker.run(listener)


if __name__ == "__main__":
    sys.exit(main())
