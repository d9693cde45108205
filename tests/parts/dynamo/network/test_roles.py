"""Workers that prefill, and workers that decode, by the real library (make test-dynamo)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from engines.process.client import EngineClient
from parts.dynamo.network.runtime import DEFAULT_ENDPOINT
from tests.loopback import free_port
from tests.parts.dynamo.handover.pairs import (
    ask,
    free_endpoint,
    handover,
    prompt,
    running,
    spec_of,
    write_checkpoint,
)
from tests.parts.dynamo.network.deployment import (
    ON_LOOPBACK,
    PYTHON,
    Deployment,
    until,
    until_capacity,
)

pytestmark = pytest.mark.dynamo


async def until_handed_over(front: EngineClient) -> None:
    """Until the worker that decodes knows one that prefills."""
    async with asyncio.timeout(30):
        number = 1000
        while not (await front.stats()).extras.get("handovers"):
            number += 1
            await ask(front, prompt(number), max_tokens=1)


async def test_prompts_are_computed_by_the_workers_that_prefill(
    deployed: Deployment, tmp_path: Path
) -> None:
    """Two of them; one is killed, then the other: it takes time, and never an answer."""
    folder = write_checkpoint(tmp_path)
    prefilling = [
        await deployed.worker(spec_of(folder, handover("prefill", free_endpoint())))
        for _ in range(2)
    ]
    await deployed.worker(spec_of(folder, handover("decode", timeout_s=5.0)))
    front = await deployed.front()
    await until_capacity(front, 8)  # those that prefill are not the front's
    await until_handed_over(front)
    prompts = [prompt(number) for number in range(20)]
    async with running(folder) as alone:
        expected = [(await ask(alone, each)).token_ids for each in prompts]

    found = await asyncio.gather(*(ask(front, each) for each in prompts[:8]))
    assert [answer.token_ids for answer in found] == expected[:8]
    assert all(answer.num_cached > 380 for answer in found)
    assert (await front.stats()).extras["failed_handovers"] == 0
    engines = [worker.engine.client() for worker in prefilling]
    for engine in engines:
        await engine.start()
        assert (await engine.stats()).prompt_tokens > 400, "one of the two did nothing"
        await engine.stop()

    for worker, some in zip(prefilling, (slice(8, 14), slice(14, 20)), strict=True):
        assert worker.engine.pid is not None
        os.kill(worker.engine.pid, signal.SIGKILL)
        found = await asyncio.gather(*(ask(front, each) for each in prompts[some]))
        assert [answer.token_ids for answer in found] == expected[some]

    await until(lambda: all(worker.pid is not None for worker in prefilling))
    before = (await front.stats()).extras["handovers"]
    async with asyncio.timeout(60):  # they are back, and asked again
        number = 2000
        while (await front.stats()).extras["handovers"] == before:
            number += 1
            await ask(front, prompt(number), max_tokens=1)


def test_the_commands_with_roles_serve_nano(tmp_path: Path, nano_cache: Path) -> None:
    """As docs/scale.md has them: the front's metrics count what was handed over."""
    port = free_port()
    common = {
        **os.environ,
        **ON_LOOPBACK,
        "DYN_FILE_KV": str(tmp_path / "kv"),
        "NIM_DYNAMO_DISCOVERY": "file",
        "NIM_ENGINE_PYTHON": f"dynamo={PYTHON}",
        "NIM_MODEL_NAME": "nano",
        "NIM_CACHE_PATH": str(nano_cache),
        "NIM_AUTH": "off",
    }
    secret = {"NIM_KV_HANDOVER_SECRET": "of this test alone"}
    prefill = {"NIM_DYNAMO_ROLE": "prefill", "NIM_KV_HANDOVER_ENDPOINT": free_endpoint()}
    decode = {"NIM_DYNAMO_ROLE": "decode", "NIM_KV_HANDOVER_TIMEOUT_S": "60"}
    front = {"NIM_DYNAMO_ENDPOINT": DEFAULT_ENDPOINT, "NIM_SERVER_PORT": str(port)}
    command = [sys.executable, "-m", "service"]
    processes = [
        subprocess.Popen([*command, name], env={**common, **own})
        for name, own in (
            ("dynamo-worker", secret | prefill),
            ("dynamo-worker", secret | decode),
            ("serve", front),
        )
    ]
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            deadline_s = time.monotonic() + 240
            number = 0
            while not handed_over(client):
                assert time.monotonic() < deadline_s
                number += 1
                text = f"Question {number}. " + "Hello, who are you? " * 80
                messages = [{"role": "user", "content": text}]
                body = {"model": "nano", "messages": messages, "max_tokens": 4}
                with contextlib.suppress(httpx2.TransportError):
                    client.post("/v1/chat/completions", json=body)
                time.sleep(0.2)
    finally:
        for process in reversed(processes):
            process.terminate()
        codes = [process.wait(timeout=60) for process in processes]
    assert codes == [0, 0, 0]


def handed_over(client: httpx2.Client) -> bool:
    try:
        text = client.get("/v1/metrics").text
    except httpx2.TransportError:
        return False
    found = re.search(r"harmonium_engine_handovers_total\{.*\} ([0-9.]+)", text)
    return found is not None and float(found[1]) > 0
