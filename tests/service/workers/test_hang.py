"""A worker whose loop stands still is ended; one that says that it lives is not."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

import msgspec
import pytest

from engines.process.wire import Alive
from service.run import process
from service.run.process import WorkerProcess

BEATING = f"""
import sys, time
for _ in range(40):
    print({msgspec.json.encode(Alive()).decode()!r}, flush=True)
    time.sleep(0.05)
"""
SILENT = "import sys; sys.stdin.read()"
STOPPING = f"""
import sys, time
print({msgspec.json.encode(Alive()).decode()!r}, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BEAT_S", 0.1)
    monkeypatch.setattr(process, "START_TIMEOUT_S", 4.0)
    monkeypatch.setattr(process, "HANG_TIMEOUT_S", 1.0)


async def _worker(program: str) -> WorkerProcess:
    command = (sys.executable, "-c", program)
    started = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    return WorkerProcess(started, 0)


@pytest.mark.parametrize(("program", "seconds"), [(SILENT, 4), (STOPPING, 1)])
async def test_a_silent_worker_is_killed_and_says_why(program: str, seconds: int) -> None:
    worker = await _worker(program)
    async with asyncio.timeout(30):
        await worker.ended()
    assert "SIGKILL" in worker.manner_of_death
    assert f"did not answer for {seconds} s" in worker.manner_of_death


async def test_a_worker_that_beats_lives_as_long_as_it_likes() -> None:
    worker = await _worker(BEATING)
    async with asyncio.timeout(30):
        await worker.ended()  # after twice the patience, by itself
    assert "did not answer" not in worker.manner_of_death
