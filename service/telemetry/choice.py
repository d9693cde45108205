"""Which telemetry the settings ask for; OpenTelemetry is loaded only when it is switched on."""

from __future__ import annotations

from importlib import import_module

from service.settings import Settings, secret_values
from service.telemetry.metrics import Metrics
from service.telemetry.redaction import Redactor
from service.telemetry.tracing import Telemetry


def telemetry_of(settings: Settings, metrics: Metrics, model: str) -> Telemetry:
    """Make it, and let it see every generation that the metrics see."""
    if not settings.enable_otel:
        return Telemetry()
    export = import_module("service.telemetry.otel.export")
    telemetry: Telemetry = export.OtelTelemetry(
        settings, model, metrics.count_dropped, Redactor(secret_values(settings))
    )
    metrics.on_generation = telemetry.observe
    return telemetry
