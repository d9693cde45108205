"""A replica that is much slower than another gets requests only while the others are full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from engines import slow
from engines.base import (
    PROBE_ID,
    EngineInfo,
    EngineRequest,
    FinishReason,
    SamplingParams,
    TokenEvent,
)
from engines.fleet import Fleet

REQUEST = EngineRequest("r", (1, 2, 3), SamplingParams(max_tokens=4))
FAST, SLOW = 0.02, 0.2


@dataclass
class Engine:
    """What a fleet looks at; implements no more of MortalEngine."""

    pace: float | None
    life: int = 1
    is_ready: bool = True
    num_probes: int = 0
    info: EngineInfo = field(default_factory=lambda: EngineInfo("x", "1", 100, 100, max_num_seqs=8))

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        assert request.request_id == PROBE_ID
        self.num_probes += 1
        yield TokenEvent((1,), finish_reason=FinishReason.LENGTH)

    async def stop(self) -> None:
        pass


async def chosen(fleet: Fleet[Any], number: int) -> list[int]:
    """Where so many requests go that all run at once."""
    found = []
    for _ in range(number):
        replica = await fleet.choose(REQUEST)
        replica.num_running += 1
        found.append(replica.number)
    return found


def end_all(fleet: Fleet[Any]) -> None:
    for replica in fleet.replicas:
        replica.num_running = 0


async def until(fleet: Fleet[Any], slow: set[int]) -> None:
    while set(fleet.slow) != slow:
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "LOOK_AGAIN_S", 0.0)


async def test_it_is_avoided_until_the_others_are_full() -> None:
    fleet: Fleet[Any] = Fleet([Engine(FAST), Engine(SLOW)])
    assert await chosen(fleet, 8) == [0] * 8
    assert await chosen(fleet, 2) == [1, 1]
    await fleet.stop()


async def test_it_is_asked_for_some_tokens_and_used_again_once_it_is_fast(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine(SLOW)
    fleet: Fleet[Any] = Fleet([Engine(FAST), engine])
    assert await chosen(fleet, 2) == [0, 0]
    while engine.num_probes < 3:
        await asyncio.sleep(0)
    engine.pace = FAST * 3  # not yet: twice is the bound of the way back
    num_probes = engine.num_probes
    while engine.num_probes < num_probes + 3:
        await asyncio.sleep(0)
    assert set(fleet.slow) == {1}
    engine.pace = FAST
    await until(fleet, set())  # without a request that would ask
    end_all(fleet)
    assert sorted(await chosen(fleet, 4)) == [0, 0, 1, 1]
    assert [message.split(":")[0] for message in caplog.messages] == [
        "Engine 1 takes 10 times as long for a token as another",
        "Engine 1 is no longer avoided",
    ]
    await fleet.stop()


async def test_engines_that_are_alike_are_never_avoided() -> None:
    """Their times per token differ by their load, up to some times."""
    engines = [Engine(FAST), Engine(FAST)]
    fleet: Fleet[Any] = Fleet(engines)
    for number in range(200):
        engines[number % 2].pace = FAST * (1 + number % 5)
        assert set(await chosen(fleet, 2)) == {0, 1}
        assert not fleet.slow
        end_all(fleet)


async def test_one_that_has_much_more_to_do_is_not_slow() -> None:
    fleet: Fleet[Any] = Fleet([Engine(FAST), Engine(SLOW)])
    fleet.replicas[1].num_running = 7
    await fleet.choose(REQUEST)
    assert not fleet.slow


async def test_the_only_one_that_serves_is_used_and_a_new_process_is_new() -> None:
    engines = [Engine(FAST), Engine(SLOW)]
    fleet: Fleet[Any] = Fleet(engines)
    assert await chosen(fleet, 1) == [0]
    engines[0].is_ready = False
    assert await chosen(fleet, 2) == [1, 1]
    engines[0].is_ready = True
    end_all(fleet)
    assert await chosen(fleet, 1) == [0]
    assert set(fleet.slow) == {1}
    engines[1].pace, engines[1].life = None, 2
    assert sorted(await chosen(fleet, 3)) == [0, 1, 1]
    assert not fleet.slow
    await fleet.stop()
