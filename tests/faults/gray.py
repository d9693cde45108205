"""Faults without an error: a disk, a name server, a clock, a Redis and a process that answer late.

What cannot be had of a kernel without root is a library that is preloaded (gray.c).
"""

from __future__ import annotations

import asyncio
import mmap
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

from tests import loopback

_SOURCE = Path(__file__).with_suffix(".c")
_CLOCK, _DISK, _NAMES, _HELD = range(0, 32, 8)


@cache
def _library(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here: install Debian's package gcc to test slow disks and names")
    library = folder / "gray.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Gray:
    """What a server is told by its disk below `folder`, its name server and its clock."""

    def __init__(self, base: Path, folder: Path) -> None:
        control = base / "gray"
        control.write_bytes(bytes(32))
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 32)
        self.environment = {
            "LD_PRELOAD": str(_library(base)),
            "GRAY_CONTROL": str(control),
            "GRAY_FOLDER": f"{folder}/",
        }

    def set_clock(self, offset_s: float) -> None:
        self._put(_CLOCK, offset_s)

    def set_disk(self, seconds: float) -> None:
        """Have each call on a file of the folder take so long."""
        self._put(_DISK, seconds)

    def set_names(self, seconds: float) -> None:
        """Have each name be looked up for so long and not be found; 0: as ever."""
        self._put(_NAMES, seconds)

    @property
    def num_held(self) -> int:
        """How often the main thread of a process, with its event loop, waited for the disk."""
        return int(struct.unpack_from("d", self._memory, _HELD)[0])

    def _put(self, place: int, value: float) -> None:
        struct.pack_into("d", self._memory, place, value)


@contextmanager
def slowed(process: psutil.Process, share: float) -> Iterator[None]:
    """Let a process run for this share of the time, as a container's CPU limit does."""
    end = threading.Event()

    def slow() -> None:
        period_s = 0.2
        while not end.is_set():
            process.send_signal(signal.SIGSTOP)
            end.wait(period_s * (1 - share))
            process.send_signal(signal.SIGCONT)
            end.wait(period_s * share)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


class LateAnswers:
    """A port in front of a Unix socket, whose answers pass after a delay."""

    def __init__(self, path: Path) -> None:
        self.delay_s = 0.0
        self.num_questions = 0
        self.port = 0
        self._path = path
        self._loop = asyncio.new_event_loop()
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[listening], daemon=True)
        self._thread.start()
        listening.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, listening: threading.Event) -> None:
        try:
            starting = asyncio.start_server(self._pass_on, loopback.ADDRESS, 0)
            server = self._loop.run_until_complete(starting)
            self.port = server.sockets[0].getsockname()[1]
        finally:
            listening.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_unix_connection(str(self._path))
        with suppress(asyncio.CancelledError, ConnectionError):  # it is closed: asyncio is not told
            await asyncio.gather(self._ask(reader, questions), self._answer(answers, writer))
        for each in (questions, writer):
            each.close()
        await asyncio.gather(questions.wait_closed(), writer.wait_closed(), return_exceptions=True)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.num_questions += 1
            writer.write(data)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await asyncio.sleep(self.delay_s)
            writer.write(data)
        writer.close()
