"""Two engine processes on nano: one computes prompts, the other one generates."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from engines.process.client import EngineClient
from engines.process.supervisor import EngineSupervisor
from engines.spec import EngineSpec
from parts.dynamo.handover.spec import PART, KvHandover
from tests.parts.dynamo.handover.pairs import ask, free_endpoint, handover

pytestmark = pytest.mark.dynamo  # two engines in a row compute 20 prompts

NUM_PROMPTS = 20
LENGTH = 300


def prompt(number: int) -> tuple[int, ...]:
    return tuple(1000 + (7 * i * i + number * (i + 11)) % 50_000 for i in range(LENGTH))


@asynccontextmanager
async def process(
    checkpoint: Path, given: KvHandover | None = None
) -> AsyncIterator[tuple[EngineSupervisor, EngineClient]]:
    limits = {"max_model_len": 1024, "max_num_seqs": 8}
    parts = {} if given is None else {PART: asdict(given)}
    spec = EngineSpec("native", {"num_threads": 1}, limits, str(checkpoint), parts=parts)
    async with AsyncExitStack() as stack:
        supervisor = EngineSupervisor(spec)
        await supervisor.start()
        stack.push_async_callback(supervisor.stop, 0.0)
        client = supervisor.client()
        await client.start()
        stack.push_async_callback(client.stop)
        yield supervisor, client


async def test_twenty_prompts_get_the_tokens_of_one_engine_and_a_lost_peer_fails_none(
    nano_checkpoint: Path,
) -> None:
    prompts = [prompt(number) for number in range(NUM_PROMPTS)]
    endpoint = free_endpoint()
    cached = (LENGTH - 1) // 16 * 16
    async with process(nano_checkpoint) as (_, alone):
        expected = [(await ask(alone, each, max_tokens=8)).token_ids for each in prompts]
    async with (
        process(nano_checkpoint, handover("prefill", endpoint)) as (giving, _),
        process(nano_checkpoint, handover("decode")) as (_, taking),
    ):
        for each, token_ids in zip(prompts, expected, strict=True):
            found = await ask(taking, each, max_tokens=8, prefill_at=endpoint)
            # All that a cached prompt has cached: the first token has as much to compute.
            assert found == (token_ids, cached)
        stats = await taking.stats()
        assert (stats.extras["handovers"], stats.extras["failed_handovers"]) == (NUM_PROMPTS, 0)

        others = [prompt(NUM_PROMPTS + number) for number in range(4)]
        assert giving.pid is not None
        asking = [asyncio.create_task(ask(taking, each, prefill_at=endpoint)) for each in others]
        os.kill(giving.pid, signal.SIGKILL)
        found_of_others = [await each for each in asking]
        assert (await taking.stats()).extras["failed_handovers"] > 0
    async with process(nano_checkpoint) as (_, alone):
        for each, found in zip(others, found_of_others, strict=True):
            assert (await ask(alone, each)).token_ids == found.token_ids
