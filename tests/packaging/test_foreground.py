"""Stops and continues of what runs under foreground.py, whose keys tests/e2e types."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

FOREGROUND = Path(__file__).parents[2] / "tools" / "packaging" / "foreground.py"
WITHIN_S = 120  # generous: the machine may be busy


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def started() -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """The program of foreground.py and, below it, a shell that waits to be interrupted."""
    script = "sleep 1000 & trap 'kill $!; exit 7' INT; echo ready; wait"
    process = subprocess.Popen(
        [sys.executable, "-S", str(FOREGROUND), "sh", "-c", script],
        stdout=subprocess.PIPE,
        process_group=0,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    outer = psutil.Process(process.pid)
    [inner] = outer.children()
    yield outer, inner
    if inner.is_running():
        os.killpg(inner.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait(timeout=WITHIN_S)


def test_what_was_continued_before_it_had_stopped_goes_on(
    started: tuple[psutil.Process, psutil.Process],
) -> None:
    outer, inner = started
    outer.suspend()
    wait_for(lambda: outer.status() == psutil.STATUS_STOPPED)
    os.killpg(inner.pid, signal.SIGTSTP)
    wait_for(lambda: inner.status() == psutil.STATUS_STOPPED)
    outer.resume()  # as `bg` does, typed while the machine had no time for us
    wait_for(lambda: inner.status() != psutil.STATUS_STOPPED)
    outer.send_signal(signal.SIGINT)
    assert outer.wait(timeout=WITHIN_S) == 7


def test_no_signal_is_lost(started: tuple[psutil.Process, psutil.Process]) -> None:
    outer, inner = started
    for _ in range(3):
        outer.send_signal(signal.SIGTSTP)
        wait_for(
            lambda: (
                outer.status() == psutil.STATUS_STOPPED and inner.status() == psutil.STATUS_STOPPED
            )
        )
        outer.send_signal(signal.SIGCONT)
        wait_for(lambda: inner.status() != psutil.STATUS_STOPPED)
    outer.send_signal(signal.SIGINT)
    assert outer.wait(timeout=WITHIN_S) == 7
