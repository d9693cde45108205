"""Sandboxes beside the server: the program that runs them, and what a server sees of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.base import EngineRequest
from parts.sandbox.launch import LAUNCH
from parts.sandbox.runners import MOST, browser, python
from parts.sandbox.serving import SERVING
from profiles.errors import InvalidConstraint
from service.settings.errors import SettingsError
from service.settings.settings import load
from service.tools import Toolbox
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.sandbox.test_python import CALL, FINAL
from tests.parts.sandbox.web import Web

pytestmark = pytest.mark.heavy  # it starts interpreters

HOST = (sys.executable, "-m", "parts.sandbox.host")


class Running:
    """A host, ready, and its folder: a short path, as sockets need."""

    def __init__(self, tool: str, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*HOST, tool, folder], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdout is not None
        assert "is ready at" in self.process.stdout.readline()

    def sandboxes(self) -> int:
        return len(psutil.Process(self.process.pid).children())

    def box(self, call_s: float = 30) -> Toolbox:
        return Toolbox({"python": replace(python(self.folder), timeout_s=call_s)})


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="host") as folder:
        yield Path(folder)


@pytest.fixture
def host(works: None, folder: Path) -> Iterator[Running]:
    running = Running("python", folder)
    yield running
    running.process.terminate()
    assert running.process.wait(30) == 0
    assert running.process.stdout is not None
    running.process.stdout.close()


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.02)


async def test_each_answer_has_a_sandbox_until_it_ends(host: Running) -> None:
    async with host.box().session({}) as session, host.box().session({}) as other:
        assert not (await session.call("python", "x = 20; open('/tmp/x', 'w')")).is_error
        assert (await session.call("python", "print('é'); x + 1")).text == "é\n21\n"
        found = await other.call("python", "import os; os.path.exists('/tmp/x')")
        assert found.text == "False\n"
        assert host.sandboxes() == 2
    await _until(lambda: host.sandboxes() == 0)


async def test_a_call_that_is_given_up_ends_its_sandbox(host: Running) -> None:
    async with host.box(call_s=2).session({}) as session:
        found = await session.call("python", "while True: pass")
        assert "python did not answer within 2 seconds. The next call" in found.text
        assert "NameError" in (await session.call("python", "x")).text
        await _until(lambda: host.sandboxes() == 1)


async def test_what_a_sandbox_used_too_much_of_is_told(host: Running) -> None:
    async with host.box().session({}) as session:
        code = "import os\nwhile True: os.write(1, b'x' * 65536)"
        assert "wrote more than" in (await session.call("python", code)).text
        assert (await session.call("python", "1")).text == "1\n"


async def test_more_answers_than_there_is_room_for_are_told(host: Running) -> None:
    streams = [await asyncio.open_unix_connection(host.folder / "python.sock") for _ in range(MOST)]
    async with host.box().session({}) as session:
        assert "python is busy" in (await session.call("python", "1")).text
        for _, writer in streams:
            writer.close()

        async def answered() -> None:
            while (await session.call("python", "1")).is_error:
                await asyncio.sleep(0.02)

        await asyncio.wait_for(answered(), 30)


async def test_a_host_that_ends_costs_the_sandbox_and_not_the_answer(
    works: None, folder: Path
) -> None:
    first = Running("python", folder)
    async with first.box().session({}) as session:
        await session.call("python", "x = 1")
        first.process.kill()
        first.process.communicate()
        lost = await session.call("python", "x")
        assert (lost.is_error, "python is not reachable" in lost.text) == (True, True)
        second = Running("python", folder)  # at the socket that the first one left
        assert "NameError" in (await session.call("python", "x")).text
        second.process.terminate()
        second.process.communicate()
        assert second.process.returncode == 0


def test_where_no_sandbox_works_it_says_why(folder: Path) -> None:
    ended = subprocess.run(
        [*HOST, "python", folder], env=os.environ | {"PATH": str(folder)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "python cannot work here: bubblewrap is not installed" in ended.stderr


def test_a_server_beside_it_needs_no_sandbox_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))  # no bubblewrap
    LAUNCH.check_server(load({"builtin_tools": f"python@{folder}"}))
    with pytest.raises(InvalidConstraint, match="/nowhere is no folder"):
        LAUNCH.check_server(load({"builtin_tools": "python@/nowhere"}))
    with pytest.raises(InvalidConstraint, match="set NIM_BROWSER_SEARCH"):
        LAUNCH.check_server(load({"builtin_tools": f"browser@{folder}"}))
    with pytest.raises(SettingsError, match="'shell' does not run here"):
        load({"builtin_tools": f"shell@{folder}"})


async def test_an_answer_goes_on_behind_the_code(
    host: Running, make_runtime: Any, make_client: Any, harmony_ids: Any
) -> None:
    prompts: list[EngineRequest] = []

    def write(request: EngineRequest) -> Any:
        prompts.append(request)
        return harmony_ids(CALL.format("print(6 * 7)") if len(prompts) == 1 else FINAL)

    engine = FakeEngine(FakeOptions(script=(1,)), write)
    settings = load({"builtin_tools": f"python@{host.folder}"})
    client = await make_client(SERVING.wire(make_runtime(engine=engine), settings))
    asked = {"model": "gpt-oss-20b", "messages": [{"role": "user", "content": "6 * 7?"}]}
    answer = await client.post(
        "/v1/chat/completions", json=asked | {"tools": [{"type": "code_interpreter"}]}
    )
    assert answer.json()["choices"][0]["message"]["content"] == "It is 42."
    assert len(prompts) == 2


async def test_a_browser_s_host_searches_by_what_the_server_names(
    works: None, folder: Path, searxng: Web
) -> None:
    running = Running("browser", folder)
    tool = browser({"name": searxng.url, "key": ""}, folder)
    async with Toolbox({"browser": tool}).session({}) as session:
        found = await session.call("browser.search", '{"query": "A"}')
    assert not found.is_error, found.text
    running.process.terminate()
    running.process.communicate()
