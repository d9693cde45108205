"""Which telemetry the settings ask for; OpenTelemetry is loaded only when it is switched on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from service.settings.settings import Settings, secret_values
from service.telemetry.redaction import Redactor
from service.telemetry.tracing import Telemetry

if TYPE_CHECKING:
    from service.telemetry.metrics import Metrics


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


def logs_of(settings: Settings, model: str) -> Telemetry:
    """Log lines alone, for a process that answers no requests."""
    if not settings.enable_otel:
        return Telemetry()
    export = import_module("service.telemetry.otel.export")
    alone = {"otel_traces_exporter": "none", "otel_metrics_exporter": "none"}
    telemetry: Telemetry = export.OtelTelemetry(
        settings.model_copy(update=alone),
        model,
        lambda signal, number: None,  # there is no page that could tell
        Redactor(secret_values(settings)),
    )
    return telemetry
