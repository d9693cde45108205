"""Log lines over OTLP: the same words and fields as on stderr, without secrets."""

from __future__ import annotations

import logging

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.trace import TraceFlags

from service.request import NO_TRACE, log_lines_of
from service.telemetry.logs import Redactor, parts_of

# Their lines speak of sending: each would beget another.
_OWN = ("opentelemetry", "parts.otel", "urllib3", "grpc")
_SEVERITIES = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
    logging.CRITICAL: SeverityNumber.FATAL,
}


class OtelHandler(logging.Handler):
    """Turns records of the standard library into OpenTelemetry's."""

    def __init__(self, provider: LoggerProvider, redact: Redactor) -> None:
        super().__init__()
        self._logger = provider.get_logger("harmonium")
        self._redact = redact
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record with the ids of its request; lines about sending are left out."""
        if record.name.startswith(_OWN):
            return
        context = log_lines_of()
        ids = context.log_ids if context is not None else {}
        trace = context.trace if context is not None else NO_TRACE
        is_traced = bool(trace.trace_id)
        self._logger.emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                trace_id=int(ids["trace_id"], 16) if is_traced else None,
                span_id=int(ids["span_id"], 16) if is_traced else None,
                trace_flags=TraceFlags(trace.is_sampled) if context is not None else None,
                severity_text=record.levelname,
                severity_number=_SEVERITIES.get(record.levelno, SeverityNumber.UNSPECIFIED),
                body=self._redact(record.getMessage()),
                attributes=self._attributes(record, ids),
            )
        )

    def _attributes(self, record: logging.LogRecord, ids: dict[str, str]) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            "logger": record.name,
            "code.file.path": record.filename,
            "code.line.number": record.lineno,
        }
        if "request_id" in ids:
            attributes["harmonium.request.id"] = self._redact(ids["request_id"])
        if record.exc_info:
            text = self._formatter.formatException(record.exc_info)
            attributes["exception.stacktrace"] = self._redact(text)
        for part in parts_of(record):
            for name, value in record.__dict__[part].items():
                if value is not None:
                    attributes[f"{part}.{name}"] = self._redact(str(value))
        return attributes
