"""What was handed over, as series."""

from __future__ import annotations

from typing import Final

from service.telemetry.series import EngineSeries, counter

SERIES: Final[tuple[EngineSeries, ...]] = (
    counter("handovers", "Prompts whose K/V a prefill worker handed over."),
    counter(
        "failed_handovers", "Prompts that were computed locally because their K/V did not arrive."
    ),
    counter("handover_blocks", "Blocks of K/V received."),
    counter("handover_bytes", "Bytes of K/V received."),
    counter("handover_seconds", "Time spent waiting for K/V, including their computation."),
)
