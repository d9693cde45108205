"""One life of an API worker as its parent sees it: spawn it, follow what it reports, end it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from typing import Final

import msgspec

from engines.process.child import manner_of_death
from engines.process.wire import Fatal, LifeMessage, Ready
from service.run.messages import (
    BEAT_S,
    EngineNews,
    WorkerError,
    WorkerSpec,
)
from service.settings.settings import worker_environment

START_TIMEOUT_S: Final = 60.0  # until it first says that it lives
# No request may hold its loop for a tenth of a second. Shorter than a usual liveness probe bears
# with: what is replaced is the worker, not the whole container with its loaded model.
HANG_TIMEOUT_S: Final = 20.0


class WorkerProcess:
    """A running worker; made by spawn()."""

    def __init__(self, process: Process, number: int) -> None:
        self.number = number
        self._process = process
        self._born_s = time.monotonic()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fatal = ""
        self._life = asyncio.create_task(self._live(), name=f"worker-{number}")

    @classmethod
    async def spawn(cls, spec: WorkerSpec, news: EngineNews) -> WorkerProcess:
        """Start it in a session of its own, out of reach of the terminal's Ctrl-C."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "service.run.worker"),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=(spec.listener_fd,),
            start_new_session=True,
            env=worker_environment(spec.shared_folder),
        )
        assert process.stdin is not None
        process.stdin.write(spec.to_bytes() + news.to_line())
        return cls(process, spec.number)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age_s(self) -> float:
        """The seconds since it was spawned."""
        return time.monotonic() - self._born_s

    async def ready(self) -> None:
        """Return when it serves; raises WorkerError when it ends before."""
        await asyncio.wait((self._ready, self._life), return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise WorkerError(self._fatal or self.manner_of_death)

    async def ended(self) -> None:
        """Return once the process is gone."""
        await asyncio.wait((self._life,))

    @property
    def manner_of_death(self) -> str:
        how = manner_of_death(self._process.returncode)
        return f"API worker {self.number} {how}" + (f": {self._fatal}" if self._fatal else "")

    def tell(self, news: EngineNews) -> None:
        """Send a line; a worker that is gone does not read it."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(news.to_line())

    def signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _live(self) -> None:
        await self._follow_reports()
        await self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _follow_reports(self) -> None:
        """Read until the process ends; a long silence is a hang, and ends it."""
        assert self._process.stdout is not None
        silent_s = 0.0  # counted in turns of our own loop: its pauses are not the worker's
        patience_s = START_TIMEOUT_S
        while silent_s < patience_s:
            try:
                async with asyncio.timeout(BEAT_S):
                    line = await self._process.stdout.readline()
            except TimeoutError:
                silent_s += BEAT_S
                continue
            silent_s, patience_s = 0.0, HANG_TIMEOUT_S
            if not line:
                return
            self._on_report(line)
        self._fatal = f"it did not answer for {patience_s:.0f} s"
        self.signal(signal.SIGKILL)

    def _on_report(self, line: bytes) -> None:
        match msgspec.json.decode(line, type=LifeMessage):
            case Ready():
                self._ready.set_result(None)
            case Fatal(_, message):
                self._fatal = message
