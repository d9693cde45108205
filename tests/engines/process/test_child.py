"""Any child process under its parent: hangs, deaths and orphans of engines and API workers."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from engines.process import child as child_module
from engines.process.child import ChildError, ChildProcess, Command, Watchdog
from engines.process.supervisor import ChildSupervisor, RestartPolicy
from engines.process.wire import Alive, Fatal, Ready


def line(report: Alive | Ready | Fatal) -> str:
    return f"print({msgspec.json.encode(report).decode()!r}, flush=True)\n"


SILENT = "import sys; sys.stdin.read()"
STOPPING = line(Ready()) + SILENT
BEATING = f"""
import time
{line(Ready())}
for _ in range(40):
    {line(Alive())}
    time.sleep(0.05)
"""
DYING = line(Fatal("code", "no memory left")) + "raise SystemExit(3)"

ORPHANED = """
import asyncio, sys
from engines.process.child import ChildProcess, Command
from engines.process.child import Watchdog

async def main():
    command = Command("child", ("-c", sys.argv[1]), lambda: b"")
    child = await ChildProcess.spawn(command, Watchdog(60, 60))
    await child.ready()
    print(child.pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""
FOLLOWING = """
import subprocess, sys, time
from engines.process.parent import claim_stdout, follow_parent
from engines.process.wire import Ready
report = claim_stdout()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
follow_parent(lambda line: None, lambda: open(sys.argv[1], "w").close())
report(Ready())
time.sleep(3600)
"""


def command_of(program: str, *arguments: str) -> Command:
    return Command("the child", ("-c", program, *arguments), lambda: b"")


@pytest.mark.parametrize(("program", "seconds"), [(SILENT, 2), (STOPPING, 1)])
async def test_a_silent_child_is_killed_and_says_why(
    no_leaks: None, monkeypatch: pytest.MonkeyPatch, program: str, seconds: int
) -> None:
    monkeypatch.setattr(child_module, "_TURN_S", 0.1)
    child = await ChildProcess.spawn(command_of(program), Watchdog(1.0, 60.0, 2.0))
    async with asyncio.timeout(60):
        reason = await child.ended()
    assert reason == f"the child was killed by SIGKILL: it did not respond for {seconds} s"


async def test_a_child_that_never_speaks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_TURN_S", 0.1)
    child = await ChildProcess.spawn(command_of(SILENT), Watchdog(60.0, 60.0, 1.0))
    with pytest.raises(ChildError, match=r"^the child was ended: it did not respond for 1 s$"):
        await child.ready()


async def test_a_child_that_beats_lives_as_long_as_it_likes(
    no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "_TURN_S", 0.1)
    child = await ChildProcess.spawn(command_of(BEATING), Watchdog(1.0, 60.0, 4.0))
    async with asyncio.timeout(60):
        assert await child.ended() == "the child exited with code 0"  # after twice the patience


async def test_a_child_that_cannot_start_speaks_for_itself(no_leaks: None) -> None:
    child = await ChildProcess.spawn(command_of(DYING), Watchdog(60.0, 60.0))
    with pytest.raises(ChildError, match=r"^no memory left$"):
        await child.ready()
    assert await child.ended() == "the child exited with code 3: no memory left"


async def test_a_program_that_is_not_there(no_leaks: None) -> None:
    command = replace(command_of(SILENT), python="/nowhere/python")
    with pytest.raises(ChildError, match=r"the child cannot be started: .*/nowhere/python"):
        await ChildProcess.spawn(command, Watchdog(60.0, 60.0))


async def test_a_killed_parent_leaves_no_child_even_a_stopped_one(
    no_leaks: None, tmp_path: Path, until: Any
) -> None:
    cleaned = tmp_path / "cleaned"
    following = FOLLOWING.replace("sys.argv[1]", repr(str(cleaned)))
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ORPHANED, following), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = psutil.Process(int(await parent.stdout.readline()))
    family = [child, *child.children()]
    assert len(family) == 2
    child.suspend()
    parent.kill()
    await parent.wait()

    async def are_gone() -> bool:
        return not any(_is_alive(process) for process in family)

    await until(are_gone)
    assert cleaned.exists()


async def test_a_supervisor_tells_of_each_death_and_starts_a_new_one(
    no_leaks: None, until: Any
) -> None:
    deaths: list[str | None] = []
    supervisor = ChildSupervisor(
        "the child",
        lambda: command_of(STOPPING),
        RestartPolicy(first_delay_s=0.01),
        on_death=lambda: deaths.append(supervisor.reason),
    )
    assert supervisor.reason == "the child has not been started"
    await supervisor.start()
    first = supervisor.pid
    assert first is not None
    psutil.Process(first).kill()

    async def is_replaced() -> bool:
        return supervisor.pid not in (None, first)

    await until(is_replaced)
    assert deaths == ["the child was killed by SIGKILL"]
    assert supervisor.num_restarts == 1
    await supervisor.stop(0.0, 0.0)
    assert supervisor.pid is None
    assert supervisor.reason == "the child was stopped"


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
