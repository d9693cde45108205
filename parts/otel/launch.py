"""OpenTelemetry in the parent, which answers no requests: its log lines alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from parts.otel.settings import OtelSettings, standard_of
from service.run.launching import LaunchPart
from service.settings.settings import Settings, secret_values, standard_variables
from service.telemetry.hooks import Telemetry
from service.telemetry.logs import Redactor


class _Otel(LaunchPart):
    def watch(self, settings: Settings, model: str) -> Telemetry | None:
        own = settings.of(OtelSettings)
        if not own.enable_otel:
            return None
        from parts.otel.export import OtelTelemetry

        standard = standard_of(standard_variables("OTEL_", "NIM_OTEL_"))
        return OtelTelemetry(
            own,
            replace(standard, traces_exporter="none", metrics_exporter="none"),
            model,
            lambda signal, number: None,  # there is no page that could tell
            Redactor(secret_values(settings)),
        )


LAUNCH: Final = _Otel()
