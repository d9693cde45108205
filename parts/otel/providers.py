"""OpenTelemetry's providers and exporters as the settings ask for them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from engines.release import release
from parts.otel.settings import Standard
from parts.otel.span_redaction import without_secrets
from service.telemetry.logs import Redactor

log = logging.getLogger(__name__)

OnDropped = Callable[[str, int], None]

_CONSOLE = {
    "traces": ConsoleSpanExporter,
    "metrics": ConsoleMetricExporter,
    "logs": ConsoleLogRecordExporter,
}


def resource_of(service_name: str) -> Resource:
    """The resource that sends: one for each process; OTEL_RESOURCE_ATTRIBUTES adds to it."""
    return Resource.create(
        {
            "service.name": service_name,
            "service.version": release(),
            "service.instance.id": str(uuid.uuid4()),
        }
    )


def exporter_of(signal: str, standard: Standard, endpoint: str | None) -> Any:
    """The exporter of one signal, or None; its library is loaded only when it is asked for."""
    kind = getattr(standard, f"{signal}_exporter")
    if kind == "none":
        return None
    if kind == "console":
        return _CONSOLE[signal]()
    is_grpc = standard.exporter_otlp_protocol == "grpc"
    exporter = (_over_grpc() if is_grpc else _over_http())[signal]
    if endpoint is None:
        return exporter()  # reads OTEL_EXPORTER_OTLP_*
    return exporter(endpoint=endpoint if is_grpc else f"{endpoint.rstrip('/')}/v1/{signal}")


def _over_grpc() -> dict[str, Any]:
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return {"traces": OTLPSpanExporter, "metrics": OTLPMetricExporter, "logs": OTLPLogExporter}


def _over_http() -> dict[str, Any]:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return {"traces": OTLPSpanExporter, "metrics": OTLPMetricExporter, "logs": OTLPLogExporter}


class CountedExporter:
    """An exporter of any signal that counts what the collector did not take, and tells changes."""

    def __init__(
        self, signal: str, exporter: Any, on_dropped: OnDropped, redact: Redactor | None = None
    ) -> None:
        self.is_closing = False
        self._signal = signal
        self._exporter = exporter
        self._on_dropped = on_dropped
        self._redact = redact
        self._is_failing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, batch: Any, **options: Any) -> Any:
        """Send a batch; spans without secrets."""
        if self._redact is not None:
            batch = [without_secrets(span, self._redact) for span in batch]
        is_sent = False
        try:
            result = self._exporter.export(batch, **options)
            is_sent = result.name == "SUCCESS"
        finally:
            self._count(len(batch) if isinstance(batch, Sequence) else 1, is_sent)
        return result

    def _count(self, number: int, is_sent: bool) -> None:
        if not is_sent:
            self._on_dropped(self._signal, number)
        if is_sent is not self._is_failing or self.is_closing:  # the log may end with the server
            return
        self._is_failing = not is_sent
        if is_sent:
            log.info("The collector accepts %s again", self._signal)
        else:
            log.warning(
                "The collector does not accept %s; they are dropped until it does", self._signal
            )


def tracer_provider(
    resource: Resource, exporter: Any, meters: MeterProvider | None
) -> TracerProvider:
    """The provider of spans; OTEL_TRACES_SAMPLER and OTEL_BSP_* say which are kept and when."""
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, meter_provider=meters))
    return provider


def logger_provider(
    resource: Resource, exporter: Any, meters: MeterProvider | None
) -> LoggerProvider:
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter, meter_provider=meters))
    return provider


def meter_provider(resource: Resource, exporter: Any) -> MeterProvider:
    """The provider of metrics; OTEL_METRIC_EXPORT_INTERVAL says how often they are sent."""
    reader = PeriodicExportingMetricReader(exporter)
    return MeterProvider([reader], resource=resource, shutdown_on_exit=False)
