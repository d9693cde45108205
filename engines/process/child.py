"""One life of the engine process: spawn it, follow what it reports, end it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Final

import msgspec

from engines.errors import EngineStartError
from engines.process.watchdog import Watchdog
from engines.process.wire import (
    Alive,
    Fatal,
    LifeMessage,
    Ready,
)
from engines.spec import EngineSpec

_LEVEL: Final = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ")
_MAX_LINE_BYTES: Final = 8192  # longer lines of the log are cut into pieces
_LAST_WORDS_S: Final = 1.0  # for the log of a process that is gone
_TURN_S: Final = 1.0

log = logging.getLogger("engines.process.child")


class EngineProcess:
    """A running engine process; made by spawn()."""

    def __init__(self, process: Process, watchdog: Watchdog) -> None:
        self._process = process
        self._watchdog = watchdog
        self._born_s = time.monotonic()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fatal = ""
        self._life = asyncio.create_task(self._live(), name="engine-process")

    @classmethod
    async def spawn(
        cls,
        spec: EngineSpec,
        address: str,
        watchdog: Watchdog,
        environment: Mapping[str, str] | None,
    ) -> EngineProcess:
        """Start the process in a session of its own, out of reach of the terminal's Ctrl-C."""
        level = logging.getLevelName(log.getEffectiveLevel())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "engines.process.host"),
            *("--address", address, "--log-level", level),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            env=environment,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        return cls(process, watchdog)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def age_s(self) -> float:
        """The seconds since the process was spawned."""
        return time.monotonic() - self._born_s

    async def ready(self) -> None:
        """Return when the engine has started; raises EngineStartError with its own words."""
        await asyncio.wait([self._ready, self._life], return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise EngineStartError(
                self._fatal or f"the engine process {manner_of_death(self._process.returncode)}"
            )

    async def ended(self) -> str:
        """Return, once the process is gone, why it is."""
        await asyncio.wait([self._life])
        said = f": {self._fatal}" if self._fatal else ""
        return f"the engine process {manner_of_death(self._process.returncode)}{said}"

    async def stop(self, drain_timeout_s: float, grace_s: float) -> None:
        """Let running requests finish, then abort them, then kill; return when it is gone."""
        for patience_s in (drain_timeout_s, grace_s):
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._life), patience_s)
                return
        await self.kill()

    async def kill(self) -> None:
        """End the process and its workers at once."""
        self._signal(signal.SIGKILL)
        await asyncio.wait([self._life])

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _live(self) -> None:
        logs = asyncio.create_task(self._forward_log(), name="engine-log")
        await self._follow_reports()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # workers that outlived their parent
        await self._process.wait()
        await asyncio.wait([logs], timeout=_LAST_WORDS_S)
        logs.cancel()  # a worker that left the group may hold stderr open for ever
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _follow_reports(self) -> None:
        """Read reports until the process ends; a hang ends it."""
        assert self._process.stdout is not None
        while self._watchdog.verdict is None:
            try:
                async with asyncio.timeout(_TURN_S):
                    line = await self._process.stdout.readline()
            except TimeoutError:
                if self._process.returncode is not None:
                    return  # dead, though a worker it forked holds stdout open
                self._watchdog.on_turn(_TURN_S)
                continue
            if not line:
                return
            self._on_report(line)
        self._fatal = self._watchdog.verdict or ""
        self._signal(signal.SIGKILL)

    def _on_report(self, line: bytes) -> None:
        try:
            report = msgspec.json.decode(line, type=LifeMessage)
        except msgspec.DecodeError:
            _log_line(line)  # printed before the host claimed its stdout
            return
        self._watchdog.on_report(report)
        match report:
            case Ready():
                self._ready.set_result(None)
            case Fatal(_, message):
                self._fatal = message
            case Alive():
                pass

    async def _forward_log(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while chunk := await self._process.stderr.read(_MAX_LINE_BYTES):
            *lines, rest = re.split(rb"[\r\n]+", rest + chunk)  # progress bars return the carriage
            if len(rest) > _MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                _log_line(line)
        _log_line(rest)


def manner_of_death(code: int | None) -> str:
    """Say how a process with this exit code ended."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _log_line(line: bytes) -> None:
    text = line.decode(errors="replace").rstrip()
    if not text:
        return
    found = _LEVEL.match(text)
    level = logging.getLevelNamesMapping()[found[1]] if found else logging.INFO
    log.log(level, "%s", text[found.end() :] if found else text)
