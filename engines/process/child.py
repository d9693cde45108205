"""One life of a child process: spawn it, follow what it reports, end it.

The engine and the API workers are such children. What a child owes to its parent is in
engines/process/parent.py; engines/process/supervisor.py starts it again when it dies.
"""

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from engines.process.wire import HEARTBEAT_S, Alive, Fatal, LifeMessage, Ready

_LEVEL: Final = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ")
_MAX_LINE_BYTES: Final = 8192  # longer lines of the log are cut into pieces
_LAST_WORDS_S: Final = 1.0  # for the log of a process that is gone
_TURN_S: Final = 1.0

log = logging.getLogger("engines.process.child")


class ChildError(Exception):
    """A child process cannot start; the message has its own words."""


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a child, and its first message."""

    name: str  # as errors call it: "the engine process"
    arguments: tuple[str, ...]  # of the Python interpreter
    first_words: Callable[[], bytes]  # for its stdin, which stays open while the parent lives
    environment: Mapping[str, str] | None = None  # its whole environment; None: the same as ours
    pass_fds: tuple[int, ...] = ()
    python: str = sys.executable
    is_log_forwarded: bool = False  # its stderr goes line by line to our log, else to our stderr
    log_line: Callable[[str], str | None] = str  # a line of it as one of ours; None: it is left out


class ChildProcess:
    """A running child process; made by spawn()."""

    def __init__(self, command: Command, process: Process, watchdog: Watchdog) -> None:
        self.on_step: Callable[[str], None] = _ignore  # of a start, named by the child
        self._name = command.name
        self._log_line = command.log_line
        self._process = process
        self._watchdog = watchdog
        self._born_s = time.monotonic()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fatal = ""
        self._life = asyncio.create_task(self._live(), name=command.name)

    @classmethod
    async def spawn(cls, command: Command, watchdog: Watchdog) -> ChildProcess:
        """Start the process in a session of its own, out of reach of the terminal's Ctrl-C.

        Raises ChildError.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *(command.python, "-P", *command.arguments),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE if command.is_log_forwarded else None,
                pass_fds=command.pass_fds,
                start_new_session=True,
                env=command.environment,
            )
        except OSError as error:
            problem = f"{error.strerror or error}: {command.python}"
            raise ChildError(f"{command.name} cannot be started: {problem}") from error
        child = cls(command, process, watchdog)
        child.tell(command.first_words())
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._born_s

    async def ready(self) -> None:
        """Return when the child reports that it is ready; raises ChildError when it ends before."""
        await asyncio.wait([self._ready, self._life], return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            silence = self._watchdog.verdict
            own_words = self._fatal if silence is None else f"{self._name} was ended: {silence}"
            raise ChildError(own_words or self._exit_reason)

    async def ended(self) -> str:
        """Wait until the process is gone; return why it ended."""
        await asyncio.wait([self._life])
        return self._exit_reason + (f": {self._fatal}" if self._fatal else "")

    def tell(self, words: bytes) -> None:
        """Write to the child's stdin; a child that is gone does not read it."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(words)

    def signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, drain_timeout_s: float, grace_s: float) -> None:
        """Let the child drain, then abort, then kill it; return when it is gone."""
        for patience_s in (drain_timeout_s, grace_s):
            self.signal(signal.SIGTERM)
            if (await asyncio.wait([self._life], timeout=patience_s))[0]:
                return
        self.signal(signal.SIGKILL)
        await asyncio.wait([self._life])

    @property
    def _exit_reason(self) -> str:
        return f"{self._name} {exit_reason(self._process.returncode)}"

    async def _live(self) -> None:
        logs = asyncio.create_task(self._forward_log(), name=f"log of {self._name}")
        await self._follow_reports()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its own children that outlived it
        await self._process.wait()
        await asyncio.wait([logs], timeout=_LAST_WORDS_S)
        logs.cancel()  # a grandchild that left the group may hold stderr open for ever
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
                    return  # dead, though a grandchild holds stdout open
                self._watchdog.on_turn(_TURN_S)
                continue
            if not line:
                return
            self._on_report(line)
        self._fatal = self._watchdog.verdict or ""
        self.signal(signal.SIGKILL)

    def _on_report(self, line: bytes) -> None:
        try:
            report = msgspec.json.decode(line, type=LifeMessage)
        except msgspec.DecodeError:
            self._log(line)  # printed before the child claimed its stdout
            return
        self._watchdog.on_report(report)
        match report:
            case Ready():
                self._ready.set_result(None)
            case Fatal(_, message):
                self._fatal = message
            case Alive(doing=doing):
                if not self._ready.done():
                    self.on_step(doing)

    async def _forward_log(self) -> None:
        if self._process.stderr is None:
            return
        rest = b""
        while chunk := await self._process.stderr.read(_MAX_LINE_BYTES):
            *lines, rest = re.split(rb"[\r\n]+", rest + chunk)  # progress bars return the carriage
            if len(rest) > _MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._log(line)
        self._log(rest)

    def _log(self, line: bytes) -> None:
        text = self._log_line(line.decode(errors="replace").rstrip())
        if text:
            _log_line(text)


def _ignore(_: str) -> None:
    pass


def exit_reason(code: int | None) -> str:
    """Say how a process with this exit code ended."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _log_line(text: str) -> None:
    found = _LEVEL.match(text)
    level = logging.getLevelNamesMapping()[found[1]] if found else logging.INFO
    log.log(level, "%s", text[found.end() :] if found else text)


class Watchdog:
    """Detects a hang: silence, in turns of its owner's loop, and standstill, in the engine's own
    beats.

    Neither is wall time: a pause of one of the two, or of the whole machine, is not taken for a
    hang.
    """

    def __init__(
        self, hang_timeout_s: float, step_timeout_s: float, start_timeout_s: float = 300.0
    ) -> None:
        self._patience_s = start_timeout_s  # starting may take longer than a step ever does
        self._hang_timeout_s = min(hang_timeout_s, step_timeout_s)
        self._step_timeout_s = step_timeout_s
        self._silent_s = 0.0
        self._still_s = 0.0
        self._work_done = 0

    def on_turn(self, seconds: float) -> None:
        """Count seconds in which the child reported nothing."""
        self._silent_s += seconds

    def on_report(self, report: LifeMessage) -> None:
        """Take a report of the child: it is not silent, and says whether its work makes
        progress."""
        self._silent_s = 0.0
        if isinstance(report, Ready):
            self._patience_s = self._hang_timeout_s
        if isinstance(report, Alive):
            is_still = report.is_running and report.work_done == self._work_done
            self._still_s = self._still_s + HEARTBEAT_S if is_still else 0.0
            self._work_done = report.work_done

    @property
    def verdict(self) -> str | None:
        """Why the child counts as hung; None while it does not."""
        if self._silent_s >= self._patience_s:
            return f"it did not respond for {self._patience_s:g} s"
        if self._still_s >= self._step_timeout_s:
            return f"it had running requests and computed no step for {self._step_timeout_s:g} s"
        return None
