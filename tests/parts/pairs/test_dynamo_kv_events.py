"""Dynamo's own router, fed with the native engine's KV events (make test-dynamo)."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from parts.dynamo.network.runtime import connect
from parts.kv_events.events import KvEvents
from parts.kv_events.publisher import KvEventPublisher
from parts.kv_events.recorder import BlockEvents
from parts.kv_events.wire import salt_key
from tests.engines.native.scheduling.simulation import Simulation
from tests.parts.dynamo.network.deployment import use_library
from tests.parts.kv_events.test_exactness import BLOCK, SALTS, answered, num_full

pytestmark = pytest.mark.dynamo


class Router:
    """Dynamo's KvRouter, and its relay of one engine's events."""

    def __init__(self, runtime: Any, serving: Any, relay: Any, router: Any) -> None:
        self._runtime, self._serving, self._relay, self._router = runtime, serving, relay, router

    @classmethod
    async def start(cls, events: str) -> Router:
        """`events`: where the engine publishes them."""
        import dynamo._core as dynamo

        runtime = connect("file")
        endpoint = runtime.endpoint(f"r{os.getpid()}.backend.generate")
        serving = asyncio.ensure_future(endpoint.serve_endpoint(_answer_nothing))
        client = await endpoint.client()
        await client.wait_for_instances()
        config = dynamo.ModelRuntimeConfig()
        config.enable_local_indexer = config.kv_event_publishing_enabled = True
        await dynamo.register_model(
            *(dynamo.ModelInput.Tokens, dynamo.ModelType.Chat, endpoint, "m", "m"),
            worker_type=dynamo.WorkerType.Aggregated,
            kv_cache_block_size=BLOCK,
            runtime_config=config,
            skip_model_assets=True,
        )
        relay = dynamo.KvEventPublisher(
            endpoint, kv_block_size=BLOCK, enable_local_indexer=True, zmq_endpoint=events
        )
        router = dynamo.KvRouter(endpoint, BLOCK, dynamo.KvRouterConfig())
        return cls(runtime, serving, relay, router)

    async def num_believed(self, salt: str | None, prompt: list[int]) -> int:
        """The blocks of the prompt that it takes the worker to have."""
        namespace = None if salt is None else salt_key(salt).removeprefix("dynamo-cache-salt:")
        scores = await self._router.get_overlap_scores(prompt, cache_namespace=namespace)
        return max((worker["device_blocks"] for worker in scores["workers"]), default=0)

    async def stop(self) -> None:
        self._relay.shutdown()
        self._runtime.shutdown()
        await self._serving


async def _answer_nothing(request: Any, context: Any) -> AsyncIterator[int]:
    yield 0


def turns(chance: random.Random) -> Iterator[tuple[str | None, list[int]]]:
    """Conversations of up to 25 blocks that begin alike; three tenants have the same words."""
    public = random.Random(0).choices(range(1000), k=3 * BLOCK)
    asked = {(salt, number): (0, 0) for salt in SALTS for number in range(12)}
    while True:
        who = salt, number = chance.choice([*asked])
        times, length = asked[who]
        if length > 22 * BLOCK:
            times, length = times + 1, 0
        asked[who] = times, length = times, length + chance.randrange(20, 3 * BLOCK)
        words = random.Random(f"{number} {times}").choices(range(1000), k=25 * BLOCK)
        yield salt, public + words[:length]


async def test_of_500_prompts_it_knows_what_is_cached_and_the_hit_of_95_percent() -> None:
    """It does not count the sliding layers' blocks, which a hit needs too."""
    use_library()
    simulation = Simulation(max_token_gap_s=None, num_blocks=300)
    core, publisher = simulation.core, KvEventPublisher(KvEvents("tcp://127.0.0.1:0"))
    core.use([BlockEvents(publisher)])
    publisher.start()
    assert publisher.endpoint is not None
    router = await Router.start(publisher.endpoint)
    num_equal = num_hits = num_too_high = 0
    asking = turns(random.Random(29))
    for number in range(500):
        salt, prompt = next(asking)
        reusable = prompt[: (len(prompt) - 1) // BLOCK * BLOCK]
        cached = num_full(core, reusable, salt)
        async with asyncio.timeout(10):  # the events of the last answer are on their way
            while (believed := await router.num_believed(salt, reusable)) != cached:
                await asyncio.sleep(0.01)
        hit = answered(core, number, salt, prompt) // BLOCK
        num_equal += believed == hit
        num_hits += hit > 3
        num_too_high += believed > hit
    await router.stop()
    publisher.stop()
    assert len(core.scheduler.blocks.pool.cached) > 250, "the pool was never full"
    assert num_hits > 150
    assert num_equal >= 475
    assert num_equal + num_too_high == 500, "never too low"
