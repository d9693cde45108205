"""What an ended request was is freed with its end: a full collection makes all streams wait."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineRequest
from engines.errors import InvalidRequest
from engines.process.client import EngineClient
from engines.process.server import EngineServer
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

NUM_REQUESTS = 60


@pytest.fixture
async def client(no_leaks: None, temp_folder: Path) -> AsyncIterator[EngineClient]:
    """Both sides of the socket in this process."""
    address = f"ipc://{temp_folder}/engine.sock"
    engine, server = FakeEngine(FakeOptions(script=(5,) * 9)), EngineServer(address)
    await engine.start()
    server.serve(engine)
    client = EngineClient(address)
    await client.start()
    yield client
    await client.stop()
    await server.close()
    await engine.stop()


async def read(client: EngineClient, request: EngineRequest, most: int) -> None:
    async with aclosing(client.generate(request)) as events:
        async for _ in events:
            if (most := most - 1) == 0:
                return


async def test_requests_leave_no_cycles(client: EngineClient, make_request: Any) -> None:
    async def some(num_requests: int) -> None:
        whole, refused = make_request(9), replace(make_request(), prompt_token_ids=())
        for number in range(num_requests):
            request, most = ((whole, 99), (whole, 2), (refused, 99))[number % 3]
            with suppress(InvalidRequest):
                await read(client, request, most)
        while (await client.stats()).num_running:
            await asyncio.sleep(0)

    await some(3)  # what is made once
    gc.collect()
    gc.disable()
    try:
        await some(NUM_REQUESTS)
        assert gc.collect() < NUM_REQUESTS
    finally:
        gc.enable()
