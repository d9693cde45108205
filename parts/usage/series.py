"""The seconds of an engine, as a series."""

from __future__ import annotations

from typing import Final

from service.telemetry.series import EngineSeries, counter

SERIES: Final[tuple[EngineSeries, ...]] = (
    counter("gpu_seconds", "GPU-seconds of all steps, where usage is counted."),
)
