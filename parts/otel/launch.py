"""OpenTelemetry in the parent, which answers no requests: its log lines alone."""

from __future__ import annotations

from typing import Final

from parts.otel.settings import OtelSettings
from service.run.launching import LaunchPart
from service.settings.settings import Settings, secret_values
from service.telemetry.hooks import Telemetry
from service.telemetry.logs import Redactor


class _Otel(LaunchPart):
    def watch(self, settings: Settings, model: str) -> Telemetry | None:
        own = settings.of(OtelSettings)
        if not own.enable_otel:
            return None
        from parts.otel.export import OtelTelemetry

        alone = {"otel_traces_exporter": "none", "otel_metrics_exporter": "none"}
        return OtelTelemetry(
            own.model_copy(update=alone),
            model,
            lambda signal, number: None,  # there is no page that could tell
            Redactor(secret_values(settings)),
        )


LAUNCH: Final = _Otel()
