"""What steps take is measured through the contract of a backend, on its clock."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from engines.native.backends.base import Batch
from engines.native.calibration import calibrate
from engines.native.loop.limits import SchedulerLimits
from engines.native.step_costs import StepCosts, StepWork
from tests.engines.native.scheduling.simulation import Clock, SimulatedBackend, h200

LIMITS = SchedulerLimits(131_072, 512, 8192)
WORKS = [
    StepWork(rows=1),
    StepWork(rows=300, context=300_000),
    StepWork(rows=32, context=32_000, tokens=2048, pairs=2048**2 // 2),
    StepWork(tokens=1024, pairs=1024 * 100_000),
]


@cache
def measured(budget_s: float) -> tuple[StepCosts, float]:
    clock = Clock()
    backend: Any = SimulatedBackend(clock, h200(), num_blocks=4000)
    return calibrate(backend, LIMITS, 1000, budget_s, clock), clock()


@pytest.mark.parametrize("work", WORKS)
def test_the_costs_are_the_devices(work: StepWork) -> None:
    costs, _ = measured(10.0)
    assert costs.seconds(work) == pytest.approx(h200().seconds(work), rel=0.1)


@pytest.mark.parametrize("beside", [0.25, pytest.param(1.0, marks=pytest.mark.heavy)])
def test_rows_take_what_they_add_to_a_chunk(beside: float) -> None:
    device = StepCosts.from_dict({**h200().as_dict(), "beside": beside})
    clock = Clock()
    backend: Any = SimulatedBackend(clock, device, num_blocks=4000)
    costs = calibrate(backend, LIMITS, 1000, 10.0, clock)
    for work in (StepWork(rows=32, tokens=512), StepWork(rows=32), StepWork(rows=64, tokens=1024)):
        assert costs.seconds(work) == pytest.approx(device.seconds(work), rel=0.1)


def test_a_slow_device_does_not_hold_up_the_start() -> None:
    costs, spent_s = measured(0.1)
    assert spent_s < 0.3
    small, large = (costs.seconds(StepWork(tokens=n)) for n in (64, 8192))
    assert 0 < small < large
    assert 0 < costs.seconds(StepWork(rows=1)) <= costs.seconds(StepWork(rows=512))


def test_rows_that_decode_are_part_of_an_answer() -> None:
    """Where equal requests get equal bits, known tokens of a prompt are prefilled."""
    clock = Clock()
    backend: Any = SimulatedBackend(clock, h200(), num_blocks=4000)
    launch, batches = backend.launch, list[Batch]()

    def recording(batch: Batch) -> Any:
        batches.append(batch)
        return launch(batch)

    backend.launch = recording
    calibrate(backend, LIMITS, 1000, 0.1, clock)
    for batch in batches:
        for start, row in zip(batch.starts, batch.rows, strict=True):
            is_answer = row.start >= start.num_prompt_tokens
            assert is_answer == row.is_last
            assert len(start.token_ids) == row.end
            assert len(start.full_blocks) == -(-row.end // 64)


def test_a_deep_chunk_is_known_not_to_be_shorter_for_a_few_tokens() -> None:
    costs, _ = measured(10.0)
    assert costs.chunk(60_000, 64).pairs == pytest.approx(h200().chunk(60_000, 64).pairs, rel=0.15)
