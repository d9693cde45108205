"""OpenTelemetry's providers and exporters as the settings ask for them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadableLogRecord
from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

from engines.release import release
from parts.otel.outbox import Outbox
from parts.otel.settings import Standard
from parts.otel.span_redaction import without_secrets
from service.telemetry.logs import Redactor

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


def _is_success(result: Any) -> bool:
    return str(result.name) == "SUCCESS"


class SpanOutbox(SpanProcessor):
    """Queues the spans that are sampled."""

    def __init__(self, exporter: Any, on_dropped: OnDropped, redact: Redactor) -> None:
        def send(batch: Sequence[ReadableSpan]) -> bool:
            return _is_success(exporter.export([without_secrets(span, redact) for span in batch]))

        self.outbox = Outbox("traces", send, on_dropped)

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span that has ended, if its trace is sampled."""
        if span.context is not None and span.context.trace_flags.sampled:
            self.outbox.put(span)


class LogOutbox(LogRecordProcessor):
    """Queues log records."""

    def __init__(self, exporter: Any, on_dropped: OnDropped) -> None:
        def send(batch: Sequence[ReadableLogRecord]) -> bool:
            return _is_success(exporter.export(batch))

        self.outbox = Outbox("logs", send, on_dropped)

    def on_emit(self, log_record: Any) -> None:
        """Queue a log record that can be read after its request has ended."""
        self.outbox.put(
            ReadableLogRecord(
                log_record=log_record.log_record,
                resource=log_record.resource,
                instrumentation_scope=log_record.instrumentation_scope,
                limits=log_record.limits,
            )
        )

    def shutdown(self) -> None:
        """The outbox is closed by its owner."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Return true at once: the outbox sends by itself."""
        return True


class CountedMetrics(MetricExporter):
    """Counts the exports that failed; the reader has no queue to overflow."""

    def __init__(self, exporter: Any, on_dropped: OnDropped) -> None:
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,
            preferred_aggregation=exporter._preferred_aggregation,
        )
        self._exporter = exporter
        self._on_dropped = on_dropped

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send metrics, and count a failure."""
        result = self._exporter.export(metrics_data, timeout_millis=timeout_millis, **kwargs)
        if not _is_success(result):
            self._on_dropped("metrics", 1)
        return MetricExportResult.SUCCESS if _is_success(result) else MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Return true at once: nothing is queued."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown()


def tracer_provider(resource: Resource, outbox: SpanOutbox | None) -> TracerProvider:
    """The provider of spans; OTEL_TRACES_SAMPLER says which traces are kept."""
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if outbox is not None:
        provider.add_span_processor(outbox)
    return provider


def logger_provider(resource: Resource, outbox: LogOutbox) -> LoggerProvider:
    provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_log_record_processor(outbox)
    return provider


def meter_provider(resource: Resource, exporter: MetricExporter) -> MeterProvider:
    """The provider of metrics; OTEL_METRIC_EXPORT_INTERVAL says how often they are sent."""
    reader = PeriodicExportingMetricReader(exporter)
    return MeterProvider([reader], resource=resource, shutdown_on_exit=False)
