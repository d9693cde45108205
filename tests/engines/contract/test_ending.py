"""How any engine drains, stops, and speaks of it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engines.base import Engine, FinishReason
from engines.errors import EngineDead, EngineDraining
from tests.engines.contract.contenders import Started

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_drain_refuses_and_completes_and_stop_ends_the_rest(
    mortal: Started, make_request: Any
) -> None:
    engine = mortal.engine
    finished = [event async for event in engine.generate(make_request(max_tokens=3))]
    assert finished[-1].finish_reason is FinishReason.LENGTH

    running = [await begun(engine, make_request((8, n), max_tokens=40)) for n in range(2, 5)]
    draining = asyncio.create_task(engine.drain())
    await asyncio.sleep(0)
    with pytest.raises(EngineDraining):
        await anext(engine.generate(make_request()))
    reasons = [await reason_of(events) for events in running]
    assert reasons == [FinishReason.LENGTH] * 3
    async with asyncio.timeout(60):
        await draining

    await engine.stop()
    await engine.stop()
    with pytest.raises(EngineDead):
        await engine.check_health()
    with pytest.raises((EngineDead, EngineDraining)):
        await anext(engine.generate(make_request()))


async def begun(engine: Engine, request: Any) -> AsyncIterator[Any]:
    """Wait for the first event, which may be the whole answer; give it back with the rest."""
    events = engine.generate(request)
    first = await anext(events)

    async def whole() -> AsyncIterator[Any]:
        yield first
        async for event in events:
            yield event

    return whole()


async def reason_of(events: AsyncIterator[Any]) -> FinishReason | None:
    reason: FinishReason | None = None
    async for event in events:
        reason = event.finish_reason
    return reason
