"""Every second of an engine is somebody's: those too of a request whose client left."""

from __future__ import annotations

import pytest

from engines.base import Adapter, EngineRequest, EngineStats, SamplingParams
from parts.usage.counting.engine_time import PART, EngineSeconds, name_of
from parts.usage.engine import EngineTime
from tests.engines.native.scheduling.simulation import Simulation


def test_the_seconds_of_all_steps_are_shared_by_the_tokens_of_each() -> None:
    simulation = Simulation(max_token_gap_s=None, num_blocks=2000)
    core = simulation.core
    core.use([EngineTime(num_gpus=2)])
    one, another = EngineSeconds("one"), EngineSeconds("another")
    asked = {
        "long": (3000, 40), "short": (100, 40), "left": (100, 4000), "stays": (100, 500),
        "short french": (100, 40),
    }  # fmt: skip
    sequences = {}
    for name, (num_prompt, num_answer) in asked.items():
        account, _, adapter = name.partition(" ")
        extras = {PART: one.account(account)}
        tokens = tuple(range(1000, 1000 + num_prompt))
        request = EngineRequest(
            name, tokens, SamplingParams(num_answer), extras=extras,
            adapter=Adapter(adapter, "/adapters", adapter) if adapter else None,
        )  # fmt: skip
        sequences[name] = core.scheduler.add(request)
    core.scheduler.add(EngineRequest("probe", (1, 2, 3), SamplingParams(1)))
    found = dict.fromkeys(asked, 0)
    for step in range(10_000):
        if not core.has_work:
            break
        if step == 100:
            core.scheduler.remove(sequences["left"])
        core.step()
        if step % 7 == 0 or not core.has_work:
            for account, adapter, num_ms in one.new(core.stats()):
                found[f"{account} {adapter}".strip()] += num_ms
    assert not core.has_work
    assert not [*another.new(core.stats())]
    total = core.stats().extras["gpu_seconds"]
    assert total == pytest.approx(2 * simulation.backend.busy_s, rel=0.01)
    assert sum(found.values()) == pytest.approx(1000 * total, abs=len(found))
    assert found["long"] > found["short"]  # its prompt is longer
    assert found["stays"] > found["left"] > found["short"]  # in as many steps as each was
    assert found["short french"] == pytest.approx(found["short"], rel=0.5)


def told(**seconds: float) -> EngineStats:
    """Of one life of an engine: what each name of the client `a` has used."""
    return EngineStats(levels={name_of("life", f"a/{name}"): s for name, s in seconds.items()})


def test_an_account_that_the_engine_forgot_is_counted_from_nothing() -> None:
    seconds = EngineSeconds("a")
    assert [*seconds.new(told(x=2.0, y=0.0001))] == [("x", "", 2000)]
    assert [*seconds.new(told(y=0.0102))] == [("y", "", 10)]  # x was not used for long
    assert [*seconds.new(told(x=0.5, y=0.0102))] == [("x", "", 500)]
