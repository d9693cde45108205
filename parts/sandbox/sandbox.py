"""A program in a sandbox, started by the first request to it and ended with its answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, STDOUT, Process
from pathlib import Path
from typing import ClassVar, Final

import psutil

from parts.sandbox.guest.frame import MEMORY_BYTES, MOST_PROCESSES, OUTPUT_BYTES
from parts.sandbox.jail import Guest, command
from service.tools import ToolLost

_LOOK_S: Final = 0.2  # between two looks at what it uses
_END_S: Final = 2.0


class Sandbox:
    """One process of a guest, and those that it starts."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._excess = ""  # what it used too much of

    async def ask(self, asked: bytes) -> str:
        """What the guest printed; raises ToolLost."""
        try:
            process = self._process or await self._start()
        except OSError as error:
            raise ToolLost(f"the sandbox did not start ({error.strerror})") from None
        assert process.stdin is not None
        assert process.stdout is not None
        mark = secrets.token_hex(16).encode()
        found = bytearray()
        with contextlib.suppress(ConnectionError):
            process.stdin.write(b"%s %d\n%s" % (mark, len(asked), asked))
            await process.stdin.drain()
        while not found.endswith(mark):
            piece = await process.stdout.read(OUTPUT_BYTES)
            found += piece
            if not piece:
                raise ToolLost(self._why(found))
            if len(found) > 2 * OUTPUT_BYTES:
                raise ToolLost(
                    f"{self._guest.name} wrote more than {OUTPUT_BYTES} bytes past print()"
                )
        return found.removesuffix(mark).decode("utf-8", "replace")

    async def close(self) -> None:
        """End the sandbox and all that runs in it."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        if (process := self._process) is not None:
            _kill(process)
            try:
                await asyncio.wait_for(_ended(process), _END_S)
            except TimeoutError:  # the one that was killed was a helper of bubblewrap's start
                _kill_all(process)
                await _ended(process)

    async def _start(self) -> Process:
        self._process = await asyncio.create_subprocess_exec(
            *command(self._guest),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            env={},
            cwd="/",
            start_new_session=True,
        )
        self._watching = asyncio.create_task(self._watch(self._process), name="memory of a sandbox")
        return self._process

    def _why(self, said: bytearray) -> str:
        if self._excess:
            return f"{self._guest.name} used more than {self._excess}"
        told = said[-500:].decode("utf-8", "replace").strip()
        return f"{self._guest.name} ended{f' ({told})' if told else ''}"

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
            await asyncio.sleep(_LOOK_S)


class SandboxBeside:
    """A sandbox of a host (host.py) in another container."""

    TOLD: ClassVar[bytes] = b"="
    LOST: ClassVar[bytes] = b"!"

    def __init__(self, guest: Guest, folder: Path) -> None:
        self._guest, self._path = guest, socket_of(guest, folder)
        self._streams: tuple[StreamReader, StreamWriter] | None = None

    async def ask(self, asked: bytes) -> str:
        """What the guest printed; raises ToolLost."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path)
            reader, writer = self._streams
            writer.write(b"%d\n%s" % (len(asked), asked))
            head = await reader.readline()
            if (num := int(head[1:])) > 2 * OUTPUT_BYTES:
                raise EOFError
            told = (await reader.readexactly(num)).decode("utf-8", "replace")
        except (OSError, EOFError, ValueError):
            raise ToolLost(f"{self._guest.name} is not reachable") from None
        if head[:1] == self.LOST:
            raise ToolLost(told)
        return told

    async def close(self) -> None:
        """The sandbox ends with its connection."""
        if self._streams is not None:
            self._streams[1].close()


def socket_of(guest: Guest, folder: Path) -> Path:
    """Where a host answers."""
    return folder / f"{guest.name}.sock"


async def _ended(process: Process) -> None:
    assert process.stdout is not None
    while await process.stdout.read(OUTPUT_BYTES):
        pass  # asyncio learns of the end once all is read
    await process.wait()


def _kill(process: Process) -> None:
    """Kill the first process of the namespace, with which all others end, and bubblewrap too.

    Bubblewrap waits for it; killed with it, it would leave a zombie where nothing reaps orphans,
    as in a container.
    """
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children()
        for child in children:
            child.kill()
        if not children:
            _kill_all(process)


def _kill_all(process: Process) -> None:
    """Kill bubblewrap too: a process that has just begun does not end with its parent yet."""
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
