"""Whether engines sleep, as series."""

from __future__ import annotations

from typing import Final

from service.telemetry.series import EngineSeries, counter, gauge

SERIES: Final[tuple[EngineSeries, ...]] = (
    gauge("asleep", "Engines whose process was ended because they were idle."),
    counter("sleeps", "Times that an engine was put to sleep."),
    counter("wakes", "Times that an engine was started again for a request."),
    counter("wake_seconds", "Time that these starts took."),
)
