"""Killing and stopping any engine under running requests."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from engines.base import Engine, EngineRequest
from engines.errors import EngineDead
from tests.engines.contract.contenders import Started

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def read(engine: Engine, request: EngineRequest, begun: asyncio.Event) -> None:
    async for _ in engine.generate(request):
        begun.set()


async def test_a_killed_process_is_started_again_and_answers_as_before(
    mortal: Started, make_request: Any
) -> None:
    engine, supervisor = mortal.engine, mortal.supervisor
    if supervisor is None:
        return  # it has no process of its own

    async def ids() -> list[int]:
        request = make_request(max_tokens=10)
        return [token async for event in engine.generate(request) for token in event.token_ids]

    before, begun = await ids(), asyncio.Event()
    cut = asyncio.create_task(read(engine, make_request(max_tokens=240), begun))
    await begun.wait()
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    await asyncio.wait([cut])
    assert cut.exception() is None or isinstance(cut.exception(), EngineDead)
    async with asyncio.timeout(600 if mortal.contender.python else 60):  # it loads its library
        while supervisor.num_restarts == 0 or not await is_healthy(engine):
            await asyncio.sleep(0.01)
    assert await ids() == before


async def is_healthy(engine: Engine) -> bool:
    try:
        await engine.check_health()
    except EngineDead:
        return False
    return True


async def test_stop_ends_open_streams_with_engine_dead(mortal: Started, make_request: Any) -> None:
    """More than run at once: on a busy machine the first answers may end before the stop."""
    engine = mortal.engine
    begun = [asyncio.Event() for _ in range(40)]
    readers = [
        asyncio.create_task(read(engine, make_request((8, 2 + n % 20), max_tokens=240), event))
        for n, event in enumerate(begun)
    ]
    async with asyncio.timeout(60):
        await asyncio.gather(*(event.wait() for event in begun[:3]))
        await engine.stop()
        outcomes = await asyncio.gather(*readers, return_exceptions=True)
    ends = [type(outcome) for outcome in outcomes]
    assert {*ends} <= {type(None), EngineDead}
    assert ends[-1] is EngineDead
