"""OpenTelemetry."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "OpenTelemetry", "Sends traces, metrics and logs over OTLP.", "docs/observability.md"
)
