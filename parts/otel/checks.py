"""Whether the collector can be reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from parts.otel.settings import OtelSettings
from service.cli.doctor_checks import Check, PartChecks, reachable
from service.settings.settings import Settings


class _Otel(PartChecks):
    def of(self, settings: Settings) -> Iterable[Check]:
        own = settings.of(OtelSettings)
        if own.enable_otel and own.otel_exporter_otlp_endpoint is not None:
            yield reachable("collector", own.otel_exporter_otlp_endpoint, 80)


CHECKS: Final = _Otel()
