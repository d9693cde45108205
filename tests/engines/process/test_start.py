"""Starting: what the caller is told while it lasts and when it fails."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

import engines.process.client
from engines.errors import EngineDead, EngineStartError
from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor
from engines.spec import EngineSpec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            EngineSpec(
                "tests.fake", {"script": [1], "start_error": "config.json: no 'vocab_size'"}
            ),
            "config.json: no 'vocab_size'",
        ),
        (EngineSpec("tests.fake", {"script": [1], "stepp_s": 0}), "unknown field `stepp_s`"),
        (EngineSpec("tests.fake", {"script": [], "step_s": 0}), "'script' (token ids) is required"),
        (
            EngineSpec("warp"),
            "engine 'warp' is unknown; known engines: dynamo, llama_cpp, native",
        ),
        (
            EngineSpec("tensorrt_llm"),
            "tools/install.py tensorrt-llm`; usable engines: ",
        ),
    ],
)
async def test_a_failed_first_start_says_why_in_the_engines_own_words(
    no_leaks: None, spec: EngineSpec, message: str
) -> None:
    supervisor = EngineSupervisor(spec)
    with pytest.raises(EngineStartError) as caught:
        await supervisor.start()
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


async def test_a_process_killed_while_starting_is_a_start_error(no_leaks: None) -> None:
    supervisor = EngineSupervisor(EngineSpec("tests.fake", {"script": [1], "start_s": 60.0}))
    starting = asyncio.create_task(supervisor.start())

    def hosts() -> list[psutil.Process]:  # other tests' servers may be children too
        children = psutil.Process().children()
        return [child for child in children if "engines.process.host" in child.cmdline()]

    async with asyncio.timeout(60):
        while not hosts():
            await asyncio.sleep(0.005)
    hosts()[0].kill()
    with pytest.raises(EngineStartError, match="was killed by SIGKILL"):
        await starting


async def test_a_cancelled_start_leaves_nothing(no_leaks: None, until: Any) -> None:
    supervisor = EngineSupervisor(EngineSpec("tests.fake", {"script": [1], "start_s": 60.0}))
    starting = asyncio.create_task(supervisor.start())

    async def is_listening() -> bool:
        return Path(supervisor.address.removeprefix("ipc://")).exists()

    await until(is_listening)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_the_host_answers_while_the_engine_loads(no_leaks: None, until: Any) -> None:
    supervisor = EngineSupervisor(EngineSpec("tests.fake", {"script": [1], "start_s": 1.5}))
    starting = asyncio.create_task(supervisor.start())
    client = EngineClient(supervisor.address)
    connecting = asyncio.create_task(client.start())

    async def is_told() -> bool:
        with pytest.raises(EngineDead) as caught:
            await client.check_health()
        return str(caught.value) == "the engine is starting"

    await until(is_told)
    with pytest.raises(EngineDead):
        _ = client.info
    await starting
    await connecting
    await client.check_health()
    assert client.info.engine == "fake"
    await client.stop()
    await supervisor.stop()


async def test_a_client_gives_up_on_an_engine_that_never_comes(temp_folder: Path) -> None:
    client = EngineClient(f"ipc://{temp_folder}/none.sock", start_timeout_s=0.2)
    with pytest.raises(EngineStartError, match="does not respond"):
        await client.start()


async def test_a_client_of_another_release_says_so(
    start_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = await start_engine()
    monkeypatch.setattr(engines.process.client, "PROTOCOL_VERSION", 999)
    with pytest.raises(EngineStartError, match=r"version \d+-\w{8} of the protocol .* version 999"):
        await supervisor.client().start()


async def test_the_socket_is_private_and_the_engine_out_of_reach_of_ctrl_c(
    start_engine: Any,
) -> None:
    supervisor = await start_engine()
    folder = Path(supervisor.address.removeprefix("ipc://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert os.getsid(supervisor.pid) != os.getsid(0)
    connections = psutil.Process(supervisor.pid).net_connections("inet")
    assert connections == []


async def test_a_temporary_folder_with_too_long_a_path(
    temp_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp_folder / ("x" * 100)))
    with pytest.raises(EngineStartError, match="set TMPDIR to a shorter folder"):
        await EngineSupervisor(EngineSpec("tests.fake", {"script": [1]})).start()


async def test_a_temporary_folder_that_does_not_exist(
    temp_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp_folder / "none"))
    with pytest.raises(EngineStartError, match="No such file or directory"):
        await EngineSupervisor(EngineSpec("tests.fake", {"script": [1]})).start()
