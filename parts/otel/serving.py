"""OpenTelemetry in an API worker: it sees every generation that the metrics see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.otel.settings import OtelSettings, standard_of
from service.run.wiring import ServingPart
from service.settings.settings import Settings, secret_values, standard_variables
from service.telemetry.logs import Redactor

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Otel(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        own = settings.of(OtelSettings)
        if not own.enable_otel:
            return runtime
        from parts.otel.export import OtelTelemetry

        metrics = runtime.metrics
        telemetry = OtelTelemetry(
            own,
            standard_of(standard_variables("OTEL_", "NIM_OTEL_")),
            runtime.model.id,
            metrics.count_dropped,
            Redactor(secret_values(settings)),
        )
        metrics.observers.append(telemetry.observe)
        return replace(runtime, telemetry=telemetry)


SERVING: Final = _Otel()
