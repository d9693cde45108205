"""Stopping any engine under running requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.base import Engine, EngineRequest
from engines.errors import EngineDead

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def read(engine: Engine, request: EngineRequest, begun: asyncio.Event) -> None:
    async for _ in engine.generate(request):
        begun.set()


async def test_stop_ends_open_streams_with_engine_dead(engine: Engine, make_request: Any) -> None:
    begun = [asyncio.Event() for _ in range(3)]
    readers = [
        asyncio.create_task(read(engine, make_request((8, n), max_tokens=240), event))
        for n, event in enumerate(begun, start=2)
    ]
    async with asyncio.timeout(10):
        await asyncio.gather(*(event.wait() for event in begun))
        await engine.stop()
        outcomes = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineDead] * 3
