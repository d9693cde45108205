"""The tool `python`: one sandbox for an answer, started by its first call.

A call never fails a request: what went wrong is the tool's answer, which the model reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from parts.sandbox.guest import MEMORY_BYTES, MOST_PROCESSES, OUTPUT_BYTES
from parts.sandbox.jail import command
from service.tools import ToolResult

MAX_CALLS: Final = 16  # of an answer
CALL_S: Final = 30.0
_MOST: Final = 16  # sandboxes of an API worker at a time
_MOST_CODE_BYTES: Final = 1 << 20
_LOOK_S: Final = 0.2  # between two looks at what it uses
_NOTHING: Final = "[no output]"  # the model takes an empty text for a failure
_AGAIN: Final = "The next call starts a new interpreter."


@cache
def guest() -> str:
    """The text of the program in the sandbox."""
    return Path(__file__).with_name("guest.py").read_text(encoding="utf-8")


class PythonToolbox:
    """Implements service.tools.Toolbox."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_MOST)

    @property
    def tools(self) -> frozenset[str]:
        return frozenset({"python"})

    @property
    def max_calls(self) -> int:
        return MAX_CALLS

    def session(self, headers: Mapping[str, str]) -> PythonSession:
        return PythonSession(self._room)


class PythonSession:
    """Implements service.tools.ToolSession; what the code made is gone with the block."""

    def __init__(self, room: asyncio.Semaphore) -> None:
        self._room = room
        self._sandbox: Sandbox | None = None

    async def __aenter__(self) -> PythonSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def call(self, recipient: str, text: str) -> ToolResult:
        if len(code := text.encode("utf-8", "replace")) > _MOST_CODE_BYTES:
            return ToolResult(f"Error: the code has over {_MOST_CODE_BYTES} bytes.", is_error=True)
        if self._sandbox is None:
            if self._room.locked():
                return ToolResult(
                    f"Error: python is busy, {_MOST} answers use it; try again later.",
                    is_error=True,
                )
            await self._room.acquire()
            self._sandbox = Sandbox()
        try:
            async with asyncio.timeout(CALL_S):
                return ToolResult(await self._sandbox.run(code) or _NOTHING)
        except TimeoutError:
            reason = f"the code ran for over {CALL_S:g} seconds"
        except SandboxLost as error:
            reason = str(error)
        except OSError as error:
            reason = f"the sandbox did not start ({error.strerror})"
        await self._close()
        return ToolResult(f"Error: {reason}. {_AGAIN}", is_error=True)

    async def _close(self) -> None:
        if (sandbox := self._sandbox) is not None:
            self._sandbox = None
            try:
                await asyncio.shield(sandbox.close())
            finally:
                self._room.release()


class SandboxLost(Exception):
    """The sandbox ended, or was ended; the text says why."""


class Sandbox:
    """An interpreter in a sandbox, started by the first code that it runs."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._excess = ""  # what it used too much of

    async def run(self, code: bytes) -> str:
        """What the code printed; raises SandboxLost, or OSError if it did not start."""
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        mark = secrets.token_hex(16).encode()
        found = bytearray()
        with contextlib.suppress(ConnectionError):
            process.stdin.write(b"%s %d\n%s" % (mark, len(code), code))
            await process.stdin.drain()
        while not found.endswith(mark):
            piece = await process.stdout.read(OUTPUT_BYTES)
            found += piece
            if not piece:
                raise SandboxLost(self._why(found))
            if len(found) > 2 * OUTPUT_BYTES:
                raise SandboxLost(f"the code wrote more than {OUTPUT_BYTES} bytes past print()")
        return found.removesuffix(mark).decode("utf-8", "replace")

    async def close(self) -> None:
        """End the sandbox and all that runs in it."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        if (process := self._process) is not None:
            _kill(process)
            assert process.stdout is not None
            while await process.stdout.read(OUTPUT_BYTES):
                pass  # asyncio learns of the end once all is read
            await process.wait()

    async def _start(self) -> Process:
        self._process = await asyncio.create_subprocess_exec(
            *command(guest()),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            env={},
            cwd="/",
            start_new_session=True,
        )
        self._watching = asyncio.create_task(self._watch(self._process), name="python's memory")
        return self._process

    def _why(self, said: bytearray) -> str:
        if self._excess:
            return f"the code used more than {self._excess}"
        told = said[-500:].decode("utf-8", "replace").strip()
        return f"the interpreter ended{f' ({told})' if told else ''}"

    async def _watch(self, process: Process) -> None:
        """End a sandbox whose processes are too many, or use too much memory together."""
        while process.returncode is None:
            num, num_bytes = await asyncio.to_thread(_used, process.pid)
            if num_bytes > MEMORY_BYTES:
                self._excess = f"{MEMORY_BYTES >> 20} MB of memory"
            elif num > MOST_PROCESSES:  # the system does not count those of root
                self._excess = f"{MOST_PROCESSES} processes"
            if self._excess:
                _kill(process)
                return
            await asyncio.sleep(_LOOK_S)


def _kill(process: Process) -> None:
    """Kill bubblewrap and the first process of its namespace, with which all others end.

    A process that has just begun does not end with its parent yet.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _used(pid: int) -> tuple[int, int]:
    """A process's descendants, and their memory together."""
    num = num_bytes = 0
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                num_bytes += child.memory_info().rss
                num += 1
    return num, num_bytes
