"""What boards tell of themselves while they work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from profiles.hardware.usage import GpuMeter


@pytest.fixture
def busy(nvml: Any) -> type[Any]:
    """An NVML whose boards are at work and do not count energy."""

    class Busy(nvml):  # type: ignore[misc]
        num_opened = 0

        def nvmlDeviceGetUtilizationRates(self, board: Any) -> Any:
            return SimpleNamespace(gpu=37, memory=9)

        def nvmlDeviceGetPowerUsage(self, board: Any) -> int:
            return 412_000

        def nvmlDeviceGetEnforcedPowerLimit(self, board: Any) -> int:
            return 700_000

        def nvmlDeviceGetTotalEnergyConsumption(self, board: Any) -> int:
            raise self.NVMLError("Not Supported")

    return Busy


def test_each_board_is_read_and_what_it_does_not_tell_is_none(busy: Any, board: Any) -> None:
    fake = busy([board(total=100, free=60), board()])
    first, second = GpuMeter(lambda: fake).read()
    assert (first.index, second.index) == (0, 1)
    assert (first.utilization, first.used_bytes, first.total_bytes) == (0.37, 40, 100)
    assert (first.power_w, first.power_limit_w, first.energy_j) == (412.0, 700.0, None)


def test_the_library_is_opened_once(busy: Any, board: Any) -> None:
    opened: list[None] = []

    def open_library() -> Any:
        opened.append(None)
        return busy([board()])

    meter = GpuMeter(open_library)
    assert len(meter.read()) == len(meter.read()) == len(opened) == 1


def test_without_a_driver_there_is_nothing_to_read() -> None:
    assert GpuMeter(lambda: None).read() == ()


def test_a_driver_that_fails_costs_the_reading_only(busy: Any, board: Any) -> None:
    fake = busy([board(error="GPU is lost")])
    assert GpuMeter(lambda: fake).read() == ()
