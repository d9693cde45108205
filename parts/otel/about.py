"""OpenTelemetry."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "OpenTelemetry", "Sends traces, metrics and logs over OTLP.", "docs/observability.md"
)
