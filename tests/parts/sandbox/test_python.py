"""The tool `python`: what code shows, what stays, and what a limit says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineRequest
from parts.sandbox import toolbox
from parts.sandbox.guest import OUTPUT_BYTES
from parts.sandbox.launch import LAUNCH
from parts.sandbox.serving import SERVING
from parts.sandbox.toolbox import PythonSession, PythonToolbox
from profiles.errors import InvalidConstraint
from service.harmony.vocabulary import decode_marked
from service.settings.errors import SettingsError
from service.settings.settings import load
from service.tools import Toolboxes
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

pytestmark = pytest.mark.heavy  # it starts interpreters

CALL = "<|channel|>analysis to=python code<|message|>{}<|call|>"
FINAL = "<|channel|>final<|message|>It is 42.<|return|>"


async def test_names_stay_and_a_last_expression_is_shown(session: PythonSession) -> None:
    assert (await session.call("python", "x = 20")).text == "[no output]"
    assert (await session.call("python", "print('é')\nx + 1.5")).text == "é\n21.5\n"


async def test_another_answer_sees_nothing_of_it(session: PythonSession) -> None:
    assert not (await session.call("python", "open('/tmp/x', 'w').write('x')")).is_error
    async with PythonToolbox().session({}) as other:
        found = await other.call("python", "import os; os.path.exists('/tmp/x')")
    assert found.text == "False\n"


async def test_an_error_shows_the_code_s_own_lines(session: PythonSession) -> None:
    found = await session.call("python", "def f():\n    return 1 / 0\nf()")
    assert not found.is_error  # the code ran; its output is the error
    assert found.text.startswith('Traceback (most recent call last):\n  File "<python>", line 3')
    assert "    return 1 / 0\n" in found.text
    assert "guest" not in found.text
    assert "SystemExit: 3" in (await session.call("python", "import sys; sys.exit(3)")).text
    assert "SyntaxError" in (await session.call("python", "x =")).text


async def test_output_is_cut_and_the_interpreter_goes_on(session: PythonSession) -> None:
    code = f"x = 5\nfor _ in range(10): print('y' * {OUTPUT_BYTES})"
    found = await session.call("python", code)
    assert found.text == "y" * OUTPUT_BYTES + "\n[output cut]\n"
    assert (await session.call("python", "x")).text == "5\n"


async def test_code_without_an_end_is_ended(
    session: PythonSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.call("python", "x = 5")
    monkeypatch.setattr(toolbox, "CALL_S", 0.2)
    found = await session.call("python", "while True: pass")
    assert found.is_error
    assert "ran for over 0.2 seconds" in found.text
    monkeypatch.undo()
    assert "NameError" in (await session.call("python", "x")).text


async def test_an_answer_that_ends_ends_its_processes(works: None) -> None:
    async with PythonToolbox().session({}) as session:
        await session.call("python", "import os\nif not os.fork():\n    while True: pass")
        assert session._sandbox is not None
        process = session._sandbox._process
        assert process is not None
    assert process.returncode is not None  # the first process of its namespace: all ended with it


async def test_more_answers_than_there_is_room_for_are_told(
    works: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolbox, "_MOST", 1)
    box = PythonToolbox()
    async with box.session({}) as one, box.session({}) as other:
        assert not (await one.call("python", "1")).is_error
        assert "python is busy" in (await other.call("python", "1")).text
    async with box.session({}) as third:
        assert not (await third.call("python", "1")).is_error


async def test_a_call_that_is_given_up_ends_its_sandbox(works: None) -> None:
    async with PythonToolbox().session({}) as session:
        running = asyncio.create_task(session.call("python", "while True: pass"))
        while session._sandbox is None or session._sandbox._process is None:
            await asyncio.sleep(0.01)
        process = session._sandbox._process
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
    with pytest.raises(SettingsError, match="set NIM_BROWSER_MCP_URL"):
        load({"builtin_tools": "python,browser"})


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


async def test_with_a_connected_browser_each_tool_is_its_own(works: None) -> None:
    class Other(PythonToolbox):
        tools = frozenset({"browser"})

    both = Toolboxes((PythonToolbox(), Other()))
    assert both.tools == {"python", "browser"}
    async with both.session({}) as session:
        await session.call("python", "x = 1")
        assert "NameError" in (await session.call("browser.search", "x")).text
        assert (await session.call("python", "x")).text == "1\n"
