"""Front and worker by the real library: what callers see of them (make test-dynamo)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.errors import (
    InvalidGrammar,
    OutOfMemory,
    PromptTooLong,
    QueueFull,
    RequestFailed,
)
from engines.grammar.tree import Regex
from tests.engines.contract.contenders import Checkpoint
from tests.loopback import free_port
from tests.parts.dynamo.network.answers import (
    POISON,
    PROMPT,
    read,
    request_of,
    running_at,
)
from tests.parts.dynamo.network.deployment import (
    ON_LOOPBACK,
    PYTHON,
    Deployment,
    deployment,
)

pytestmark = pytest.mark.dynamo


async def test_a_closed_answer_frees_its_worker_at_once(deployed: Deployment) -> None:
    worker = await deployed.worker()
    front, engine = await deployed.front(), await running_at(worker)
    async with aclosing(front.generate(request_of(4000))) as events:
        await anext(events)
        assert (await engine.stats()).num_running == 1
    begun_s = time.monotonic()
    while (await engine.stats()).num_running:
        await asyncio.sleep(0.005)
    assert time.monotonic() - begun_s < 0.2
    await engine.stop()


async def test_errors_of_a_worker_keep_their_class(
    deployed: Deployment, checkpoint: Checkpoint
) -> None:
    await deployed.worker(fail_at=5, faults=[{"token": POISON, "kind": "memory", "after": 2}])
    front = await deployed.front()
    with pytest.raises(RequestFailed, match="fails after 5 tokens"):
        await read(front, request_of())
    with pytest.raises(OutOfMemory):
        await read(front, request_of(prompt=(POISON,)))
    with pytest.raises(PromptTooLong, match="context length is 4096"):
        await read(front, request_of(prompt=PROMPT * 300))
    async with deployment() as other:
        await other.worker(checkpoint.spec("native", {"num_threads": 1}))
        with pytest.raises(InvalidGrammar):
            await read(await other.front(), replace(request_of(), grammar=Regex("[")))


async def test_a_full_queue_and_a_shorter_context_are_the_fronts(deployed: Deployment) -> None:
    await deployed.worker()
    front = await deployed.front(max_num_waiting=1, max_model_len=64)
    assert front.info.max_model_len == 64
    with pytest.raises(PromptTooLong):
        await read(front, request_of(prompt=PROMPT * 4))
    answers = [asyncio.create_task(read(front, request_of(40))) for _ in range(10)]
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert any(isinstance(each, QueueFull) for each in found)


def test_the_commands_serve_nano(tmp_path: Path, nano_cache: Path) -> None:
    """`harmonium dynamo-worker` and `harmonium serve`, as docs/scale.md has them."""
    import httpx2

    port = free_port()
    environment = {
        **os.environ,
        **ON_LOOPBACK,
        "DYN_FILE_KV": str(tmp_path / "kv"),
        "NIM_DYNAMO_DISCOVERY": "file",
        "NIM_DYNAMO_ENDPOINT": "test.backend.generate",
        "NIM_ENGINE_PYTHON": f"dynamo={PYTHON}",
        "NIM_MODEL_NAME": "nano",
        "NIM_CACHE_PATH": str(nano_cache),
        "NIM_AUTH": "off",
    }
    command = [sys.executable, "-m", "service"]
    processes = [
        subprocess.Popen([*command, "dynamo-worker"], env=environment),
        subprocess.Popen([*command, "serve", "--server-port", str(port)], env=environment),
    ]
    body: dict[str, Any] = {
        "model": "nano",
        "messages": [{"role": "user", "content": "Hello!"}],
        "seed": 1,
        "max_completion_tokens": 40,
    }
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            deadline_s = time.monotonic() + 180
            while time.monotonic() < deadline_s:
                try:
                    if client.get("/v1/health/ready").status_code == 200:
                        break
                except httpx2.TransportError:
                    pass
                time.sleep(0.2)
            answered = client.post("/v1/chat/completions", json=body)
            assert answered.status_code == 200, answered.text
            answer = answered.json()
            assert "nano" in answer["choices"][0]["message"]["content"]
            refused = client.post("/v1/chat/completions", json={**body, "top_logprobs": 999})
            assert refused.status_code == 400
            assert 'engine="dynamo"' in client.get("/v1/metrics").text
    finally:
        for process in reversed(processes):
            process.terminate()
        codes = [process.wait(timeout=60) for process in processes]
    assert codes == [0, 0]
