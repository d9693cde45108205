"""The seconds of an engine, as a series."""

from __future__ import annotations

from typing import Final

from engines.base import EngineStats
from parts.usage.counting.engine_time import PREFIX
from service.telemetry.series import EngineSeries, counter


def _seconds(stats: EngineStats) -> float:
    return sum(s for name, s in stats.extras.items() if name.startswith(f"{PREFIX}/"))


SERIES: Final[tuple[EngineSeries, ...]] = (
    counter("gpu_seconds", "GPU-seconds of all steps, where usage is counted.", _seconds),
)
