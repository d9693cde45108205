"""The engine process by itself, as a parent sees it."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import engines.process.host
from engines import start_steps
from engines.base import EngineInfo
from engines.errors import EngineDead
from engines.process.supervisor import EngineSupervisor
from engines.process.wire import (
    Alive,
    Fatal,
    LifeMessage,
    Ready,
)
from engines.spec import EngineSpec


class Host:
    """An engine process spawned without the supervisor."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def said(self, kind: type[LifeMessage]) -> LifeMessage:
        """Read reports until one of this kind."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while True:
                line = await self.process.stdout.readline()
                report = msgspec.json.decode(line, type=LifeMessage)
                if isinstance(report, kind):
                    return report


@pytest.fixture
async def start_host(no_leaks: None, temp_folder: Path) -> AsyncIterator[Any]:
    folder = temp_folder / "engine"
    folder.mkdir()
    started: list[asyncio.subprocess.Process] = []

    async def start(spec: bytes) -> Host:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "engines.process.host"),
            *("--address", f"ipc://{folder}/engine.sock"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdin is not None
        process.stdin.write(spec + b"\n")
        return Host(process)

    yield start
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(60):
            await process.wait()
    if folder.exists():
        folder.rmdir()  # fails when the host left its socket


async def test_life_is_reported_and_sigterm_ends_it(start_host: Any) -> None:
    host = await start_host(b'{"engine": "tests.fake", "options": {"script": [1]}}')
    await host.said(Alive)
    await host.said(Ready)
    host.process.send_signal(signal.SIGTERM)
    assert await host.process.wait() == 0


async def test_a_closed_stdin_ends_it_at_once(start_host: Any) -> None:
    host = await start_host(b'{"engine": "tests.fake", "options": {"script": [1]}}')
    await host.said(Ready)
    host.process.stdin.close()
    assert await host.process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("spec", [b"no json", b'{"options": {}}', b""])
async def test_a_spec_that_is_none(start_host: Any, spec: bytes) -> None:
    host = await start_host(spec)
    report = await host.said(Fatal)
    assert "the first line of stdin is not EngineSpec" in report.message
    assert await host.process.wait() == 1


async def test_what_an_engine_prints_does_not_disturb_the_reports(
    no_leaks: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    (tmp_path / "sitecustomize.py").write_text("print('a library says hello')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    supervisor = EngineSupervisor(EngineSpec("tests.fake", {"script": [1]}))
    await supervisor.start()
    await supervisor.stop()
    lines = [
        record.getMessage() for record in caplog.records if record.name == "engines.process.child"
    ]
    assert "a library says hello" in lines
    [ready] = [line for line in lines if "is ready" in line]
    phases = r"loading engine tests\.fake \d+\.\d s, loading the model \d+\.\d s.*"
    assert re.fullmatch(
        rf"engines\.process\.host: The engine 'tests\.fake' is ready: {phases}", ready
    )


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector as it was."""
    yield
    gc.unfreeze()


class Dying:
    """An engine whose health fails after it started."""

    info = EngineInfo("dying", "1", 256, 512, 8)

    async def start(self) -> None: ...

    async def check_health(self) -> None:
        raise EngineDead("the worker thread is gone")


async def test_an_engine_that_died_ends_its_process(
    no_leaks: None, temp_folder: Path, collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines.process.host, "create", lambda spec: Dying())
    start_steps.end()  # of an engine that another test started here
    reports: list[LifeMessage] = []
    address = f"ipc://{temp_folder}/engine.sock"
    with pytest.raises(EngineDead, match="the worker thread is gone"):
        await engines.process.host.run(EngineSpec("dying"), address, reports.append)
    assert reports == [Alive(), Ready()]


async def test_what_start_up_made_is_never_walked_through_again(
    no_leaks: None, temp_folder: Path, collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines.process.host, "create", lambda spec: Dying())
    num_watched: list[int] = []

    def report(message: LifeMessage) -> None:
        if message == Ready():
            num_watched.append(len(gc.get_objects()))

    address = f"ipc://{temp_folder}/engine.sock"
    with pytest.raises(EngineDead):
        await engines.process.host.run(EngineSpec("dying"), address, report)
    assert num_watched[0] < 1000


async def test_workers_of_a_killed_engine_die_with_it_and_do_not_delay_its_restart(
    no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if '--address' in sys.orig_argv and os.fork() == 0:\n"
        f"    open({str(tmp_path / 'worker')!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(3600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    supervisor = EngineSupervisor(EngineSpec("tests.fake", {"script": [1]}))
    await supervisor.start()
    worker = psutil.Process(int((tmp_path / "worker").read_text()))
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)

    async def is_restarted() -> bool:
        return supervisor.num_restarts == 1

    await until(is_restarted)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    await supervisor.stop()
