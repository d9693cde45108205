"""What a child process owes to its parent: reports on stdout, and its end when the parent is gone.

The parent's side is engines/process/child.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import msgspec

from engines.errors import EngineError, EngineStartError
from engines.process.wire import Fatal, LifeMessage

LOG_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"  # supervisor reads the level back
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)

T = TypeVar("T")
Report = Callable[[LifeMessage], None]

log = logging.getLogger(__name__)


def claim_stdout() -> Report:
    """Keep stdout for reports to the parent; prints of any library go to stderr from here on."""
    descriptor = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(message: LifeMessage) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone; its follower acts
            os.write(descriptor, msgspec.json.encode(message) + b"\n")

    return report


def follow_parent(on_line: Callable[[bytes], None], clean_up: Callable[[], None]) -> None:
    """Start to hand each line of stdin to `on_line`, in a thread that a hung loop cannot stop.

    stdin closes when the parent is gone, however it ended: then clean up and end at once, with
    every process of this session. So a killed parent leaves nothing behind.
    """
    _wake_when_orphaned()
    threading.Thread(target=_follow, args=[on_line, clean_up], daemon=True).start()


def run_child(
    kind: type[T],
    work: Callable[[T, Report], Coroutine[Any, Any, None]],
    *,
    log_level: Callable[[T], str],
    clean_up: Callable[[], None] = lambda: None,
) -> int:
    """Be the child process that runs `work` on the spec in the first line of stdin; return the exit
    code. `clean_up`: what a killed parent could not."""
    report = claim_stdout()
    try:
        spec = msgspec.json.decode(first_line(), type=kind)
    except msgspec.DecodeError as error:
        reason = f"the first line of stdin is not {kind.__name__}: {error}"
        report(Fatal(EngineStartError.code, reason))
        return 1
    logging.basicConfig(level=log_level(spec), format=LOG_FORMAT, stream=sys.stderr)
    logging.captureWarnings(True)
    follow_parent(lambda line: None, clean_up)
    return _run_reporting(work(spec, report), report)


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
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


def _run_reporting(work: Coroutine[Any, Any, None], report: Report) -> int:
    """Run what the process is for, and report the error that ended it; return the exit code."""
    try:
        asyncio.run(work)
    except EngineError as error:
        report(Fatal(error.code, str(error)))
        return 1
    except Exception as error:
        log.exception("The process failed")
        report(Fatal(EngineStartError.code, f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _follow(on_line: Callable[[bytes], None], clean_up: Callable[[], None]) -> None:
    for line in _lines(sys.stdin.fileno()):
        on_line(line)
    with contextlib.suppress(OSError):
        clean_up()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # with the processes that we started
    os._exit(1)


def first_line() -> bytes:
    """Read what the parent says first: one line of stdin, and nothing beyond it."""
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _lines(descriptor: int) -> Iterator[bytes]:
    # Unbuffered: a thread that waits in here must not hold a lock when the process ends.
    rest = b""
    while data := os.read(descriptor, 65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _wake_when_orphaned() -> None:
    """A stopped process (Ctrl-Z, a debugger) must be continued to see that its parent is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))
