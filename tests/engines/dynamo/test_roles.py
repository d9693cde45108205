"""Workers that prefill, and workers that decode, by the real library (make test-dynamo)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.process.client import EngineClient
from tests.engines.dynamo.deployment import Deployment, deployment, until, until_capacity
from tests.engines.handover.pairs import (
    ask,
    free_endpoint,
    handover,
    prompt,
    running,
    spec_of,
    write_checkpoint,
)

pytestmark = pytest.mark.dynamo


@pytest.fixture
async def deployed() -> AsyncIterator[Deployment]:
    async with deployment() as started:
        yield started


async def until_handed_over(front: EngineClient) -> None:
    """Until the worker that decodes knows one that prefills."""
    async with asyncio.timeout(30):
        number = 1000
        while not (await front.stats()).num_handovers:
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
    assert (await front.stats()).num_failed_handovers == 0
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
    before = (await front.stats()).num_handovers
    async with asyncio.timeout(60):  # they are back, and asked again
        number = 2000
        while (await front.stats()).num_handovers == before:
            number += 1
            await ask(front, prompt(number), max_tokens=1)
