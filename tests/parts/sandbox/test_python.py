"""The tool `python`: what code shows, what stays, and what a limit says."""

from __future__ import annotations

import asyncio
import ctypes
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.base import EngineRequest
from parts.sandbox import runners
from parts.sandbox.guest.frame import OUTPUT_BYTES
from parts.sandbox.launch import LAUNCH
from parts.sandbox.runners import CALL_S, SandboxRunner, python
from parts.sandbox.sandbox import Sandbox
from parts.sandbox.serving import SERVING
from profiles.errors import InvalidConstraint
from service.harmony.vocabulary import decode_marked
from service.settings.errors import SettingsError
from service.settings.settings import load
from service.tools import ConnectedTool, Toolbox, ToolResult, ToolSession, with_tools
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

pytestmark = pytest.mark.heavy  # it starts interpreters


def box(call_s: float = CALL_S) -> Toolbox:
    return Toolbox({"python": replace(python(), timeout_s=call_s)})


def process_of(session: ToolSession) -> Process:
    """The sandbox of a session, once it has one."""
    runner = session._open["python"]
    assert isinstance(runner, SandboxRunner)
    assert isinstance(runner.sandbox, Sandbox)
    assert runner.sandbox._process is not None
    return runner.sandbox._process


CALL = "<|channel|>analysis to=python code<|message|>{}<|call|>"
FINAL = "<|channel|>final<|message|>It is 42.<|return|>"


async def test_names_stay_and_a_last_expression_is_shown(session: ToolSession) -> None:
    silent = (await session.call("python", "x = 20")).text
    assert silent.startswith("[WARN] No output available. Use print()")  # gpt-oss 0.0.9's words
    assert (await session.call("python", "print('é')\nx + 1.5")).text == "é\n21.5\n"


async def test_another_answer_sees_nothing_of_it(session: ToolSession) -> None:
    assert not (await session.call("python", "open('/tmp/x', 'w').write('x')")).is_error
    async with box().session({}) as other:
        found = await other.call("python", "import os; os.path.exists('/tmp/x')")
    assert found.text == "False\n"


async def test_an_error_shows_the_code_s_own_lines(session: ToolSession) -> None:
    found = await session.call("python", "def f():\n    return 1 / 0\nf()")
    assert not found.is_error  # the code ran; its output is the error
    assert found.text.startswith('Traceback (most recent call last):\n  File "<python>", line 3')
    assert "    return 1 / 0\n" in found.text
    assert "guest" not in found.text
    assert "SystemExit: 3" in (await session.call("python", "import sys; sys.exit(3)")).text
    assert "SyntaxError" in (await session.call("python", "x =")).text


async def test_output_is_cut_and_the_interpreter_goes_on(session: ToolSession) -> None:
    code = f"x = 5\nfor _ in range(10): print('y' * {OUTPUT_BYTES})"
    found = await session.call("python", code)
    assert found.text == "y" * OUTPUT_BYTES + "\n[output cut]\n"
    assert (await session.call("python", "x")).text == "5\n"


async def test_code_without_an_end_is_ended(works: None) -> None:
    async with box(call_s=3).session({}) as session:
        await session.call("python", "x = 5")
        found = await session.call("python", "while True: pass")
        assert found.is_error
        assert (
            "did not answer within 3 seconds. The next call of python starts from nothing"
            in found.text
        )
        assert "NameError" in (await session.call("python", "x")).text


async def test_an_answer_that_ends_ends_its_processes(works: None) -> None:
    async with box().session({}) as session:
        await session.call("python", "import os\nif not os.fork():\n    while True: pass")
        process = process_of(session)
    assert process.returncode is not None  # the first process of its namespace: all ended with it


async def test_nothing_is_left_where_nobody_reaps_orphans(works: None) -> None:
    """In a container the server is the first process: orphans become its children."""
    become_reaper = ctypes.CDLL(None).prctl
    assert become_reaper(36, 1, 0, 0, 0) == 0
    try:
        async with box().session({}) as session:
            assert not (await session.call("python", "1")).is_error
        async with box(call_s=1).session({}) as session:
            assert (await session.call("python", "while True: pass")).is_error
        dead = [child for child in psutil.Process().children() if child.status() == "zombie"]
        assert dead == []
    finally:
        become_reaper(36, 0, 0, 0, 0)


async def test_more_answers_than_there_is_room_for_are_told(
    works: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "MOST", 1)
    small = box()
    async with small.session({}) as one, small.session({}) as other:
        assert not (await one.call("python", "1")).is_error
        assert "python is busy" in (await other.call("python", "1")).text
    async with small.session({}) as third:
        assert not (await third.call("python", "1")).is_error


def _has_process(session: ToolSession) -> bool:
    runner = session._open.get("python")
    sandbox = runner.sandbox if isinstance(runner, SandboxRunner) else None
    return isinstance(sandbox, Sandbox) and sandbox._process is not None


async def test_a_call_that_is_given_up_ends_its_sandbox(works: None) -> None:
    async with box().session({}) as session:
        running = asyncio.create_task(session.call("python", "while True: pass"))
        while not _has_process(session):
            await asyncio.sleep(0.01)
        process = process_of(session)
        running.cancel()
        await asyncio.wait((running,))
    assert process.returncode is not None


def test_where_no_sandbox_works_the_server_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load({"builtin_tools": "python"})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidConstraint, match="bubblewrap is not installed"):
        LAUNCH.check_server(settings)
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho bwrap: No permissions >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(InvalidConstraint, match=r"\(bwrap: No permissions\)\. It needs user"):
        LAUNCH.check_server(settings)
    LAUNCH.check_server(load({}))


def test_a_tool_that_does_not_run_here_is_refused() -> None:
    with pytest.raises(SettingsError, match="'shell' does not run here; python and browser do"):
        load({"builtin_tools": "python,shell"})


async def test_a_chat_s_answer_goes_on_behind_the_code(
    works: None,
    make_runtime: Any,
    make_client: Callable[..., Any],
    harmony_ids: Callable[[str], tuple[int, ...]],
) -> None:
    prompts: list[EngineRequest] = []

    def write(request: EngineRequest) -> tuple[int, ...]:
        prompts.append(request)
        return harmony_ids(CALL.format("print(6 * 7)") if len(prompts) == 1 else FINAL)

    engine = FakeEngine(FakeOptions(script=(1,)), write)
    settings = load({"builtin_tools": "python"})
    runtime = SERVING.wire(make_runtime(engine=engine), settings)
    client = await make_client(runtime)
    asked = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "6 * 7?"}]}
    answer = await client.post(
        "/v1/chat/completions", json=asked | {"tools": [{"type": "code_interpreter"}]}
    )
    assert answer.json()["choices"][0]["message"]["content"] == "It is 42."
    seen = decode_marked(prompts[1].prompt_token_ids)
    assert "python to=assistant<|channel|>analysis<|message|>42\n<|end|>" in seen


async def test_a_tool_that_runs_here_replaces_a_connected_one(works: None) -> None:
    class Other:
        async def call(self, action: str, text: str) -> ToolResult:
            return ToolResult(f"{action} of another")

        async def close(self) -> None: ...

    other = ConnectedTool(lambda headers, answer: Other(), 1.0)
    both = with_tools(Toolbox({"python": other, "browser": other}), {"python": python()})
    assert both.tools == {"python", "browser"}
    async with both.session({}) as session:
        await session.call("python", "x = 1")
        assert (await session.call("browser.search", "x")).text == "search of another"
        assert (await session.call("python", "x")).text == "1\n"
