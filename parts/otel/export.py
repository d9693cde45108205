"""Telemetry that is sent: spans, metrics and logs of one process, over OTLP or to the console."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import Scope

from engines.base import Engine
from parts.otel import providers
from parts.otel.instruments import EngineGauges, Instruments
from parts.otel.log_handler import OtelHandler
from parts.otel.outbox import Outbox
from parts.otel.settings import OtelSettings, Standard
from parts.otel.spans import Spans
from service.answer.generation import Generation
from service.http.paths import ROW
from service.request import RequestContext, Trace
from service.telemetry.hooks import Telemetry
from service.telemetry.logs import Redactor

CLOSE_S: Final = 3.0  # for what is left at the end; the collector may be gone

log = logging.getLogger(__name__)


class OtelTelemetry(Telemetry):
    """Sends spans, metrics and logs; requests only ever append to bounded queues."""

    def __init__(
        self,
        settings: OtelSettings,
        standard: Standard,
        model: str,
        on_dropped: Callable[[str, int], None],
        redact: Redactor,
    ) -> None:
        """Raises what an exporter raises for settings that it cannot use."""
        logging.getLogger("opentelemetry").setLevel("CRITICAL")  # the outboxes say it once
        self._resource = providers.resource_of(standard.service_name)
        self._model = model
        self._has_content = settings.otel_capture_content
        self._outboxes: list[Outbox] = []
        self._exporters: list[Any] = []
        self._closing: threading.Thread | None = None
        self._spans: Spans | None = None
        self._instruments: Instruments | None = None
        self._handler: OtelHandler | None = None
        exporters = {
            signal: providers.exporter_of(signal, standard, settings.otel_exporter_otlp_endpoint)
            for signal in ("traces", "metrics", "logs")
        }
        if (exporter := exporters["traces"]) is not None:
            self._start_traces(exporter, model, on_dropped, redact)
        if (exporter := exporters["metrics"]) is not None:
            self._start_metrics(exporter, model, on_dropped)
        if (exporter := exporters["logs"]) is not None:
            self._start_logs(exporter, on_dropped, redact)

    def _start_traces(self, exporter: Any, model: str, on_dropped: Any, redact: Redactor) -> None:
        outbox = providers.SpanOutbox(exporter, on_dropped, redact)
        self._outboxes.append(outbox.outbox)
        self._exporters.append(exporter)
        self._spans = Spans(providers.tracer_provider(self._resource, outbox), model)

    def _start_metrics(self, exporter: Any, model: str, on_dropped: Any) -> None:
        counted = providers.CountedMetrics(exporter, on_dropped)
        self._meters = providers.meter_provider(self._resource, counted)
        self._instruments = Instruments(self._meters, model)

    def _start_logs(self, exporter: Any, on_dropped: Any, redact: Redactor) -> None:
        outbox = providers.LogOutbox(exporter, on_dropped)
        self._outboxes.append(outbox.outbox)
        self._exporters.append(exporter)
        provider = providers.logger_provider(self._resource, outbox)
        self._handler = OtelHandler(provider, redact)
        logging.getLogger().addHandler(self._handler)

    def start(self, engine: Engine) -> None:
        """Send the engine's gauges from now on."""
        if self._instruments is not None:
            EngineGauges(self._meters, self._model, engine, asyncio.get_running_loop())

    def begin(self, context: RequestContext, scope: Scope) -> Trace:
        """Begin the request's span, unless it is a probe or a scrape; return the trace with it."""
        if self._spans is None or scope[ROW].is_quiet:
            return context.trace
        trace = self._spans.begin(context, _attributes(context, scope))
        return replace(trace, has_content=self._has_content)

    def observe(self, generation: Generation) -> None:
        """Write a generation into its request's span, and into the metrics."""
        if self._spans is not None:
            self._spans.generation(generation)
        if self._instruments is not None:
            self._instruments.observe(generation)

    def end(self, context: RequestContext, status: int) -> None:
        """End the request's span with the status of its answer."""
        if self._spans is not None and context.trace.span is not None:
            self._spans.end(context, status)

    async def close(self) -> None:
        """Send what is left, for CLOSE_S seconds at most."""
        if self._handler is not None:
            logging.getLogger().removeHandler(self._handler)
            self._handler = None
        if self._closing is None:
            # In a daemon thread, so that the end does not wait for a collector that does not
            # answer.
            self._closing = threading.Thread(target=self._close, name="otel-close", daemon=True)
            self._closing.start()
        deadline = asyncio.get_running_loop().time() + CLOSE_S
        while self._closing.is_alive() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)

    def _close(self) -> None:
        share_s = CLOSE_S / (len(self._outboxes) + 2)
        for outbox in self._outboxes:  # first: they keep to their time, the library may not
            outbox.close(share_s)
        if self._instruments is not None:
            self._meters.shutdown(timeout_millis=share_s * 1000)
        for exporter in self._exporters:
            exporter.shutdown()


def _attributes(context: RequestContext, scope: Scope) -> dict[str, Any]:
    """HTTP attributes that are useful and contain no secrets: no query, no headers."""
    client, server = scope.get("client"), scope.get("server")
    attributes: dict[str, Any] = {
        "http.request.method": scope["method"],
        "http.route": context.route,
        "url.path": scope["path"][:200],
        "url.scheme": scope["scheme"],
        "harmonium.request.id": context.id,
        "user_agent.original": Headers(scope=scope).get("user-agent", "")[:200],
    }
    if client:
        attributes["client.address"] = client[0]
    if server:
        attributes["server.address"], attributes["server.port"] = server[0], server[1] or 0
    return attributes
