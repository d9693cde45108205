"""Telemetry that is sent: spans, metrics and logs of one process, over OTLP or to the console."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import Scope

from engines.base import Engine
from parts.otel import providers
from parts.otel.instruments import EngineGauges, Instruments
from parts.otel.log_handler import OtelHandler
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
        logging.getLogger("opentelemetry").setLevel("CRITICAL")  # the counted exporters say it once
        self._resource = providers.resource_of(standard.service_name)
        self._model = model
        self._has_content = settings.otel_capture_content
        self._exporters: list[providers.CountedExporter] = []
        self._shutdowns: list[Callable[[], object]] = []
        self._closing: threading.Thread | None = None
        self._spans: Spans | None = None
        self._instruments: Instruments | None = None
        self._handler: OtelHandler | None = None

        def exporter_of(
            signal: str, redact: Redactor | None = None
        ) -> providers.CountedExporter | None:
            found = providers.exporter_of(signal, standard, settings.otel_exporter_otlp_endpoint)
            if found is None:
                return None
            self._exporters.append(providers.CountedExporter(signal, found, on_dropped, redact))
            return self._exporters[-1]

        meters = None
        if (exporter := exporter_of("metrics")) is not None:
            meters = self._meters = providers.meter_provider(self._resource, exporter)
            self._instruments = Instruments(self._meters, model)
            self._shutdowns.append(self._meters.shutdown)
        if (exporter := exporter_of("traces", redact)) is not None:
            tracers = providers.tracer_provider(self._resource, exporter, meters)
            self._spans = Spans(tracers, model)
            self._shutdowns.append(tracers.shutdown)
        if (exporter := exporter_of("logs")) is not None:
            loggers = providers.logger_provider(self._resource, exporter, meters)
            self._handler = OtelHandler(loggers, redact)
            logging.getLogger().addHandler(self._handler)
            self._shutdowns.append(loggers.shutdown)

    def start(self, engine: Engine) -> None:
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
        """All signals at once: none takes the time of another."""
        until = time.monotonic() + CLOSE_S * 0.7
        for exporter in self._exporters:
            exporter.is_closing = True
        threads = [threading.Thread(target=end, daemon=True) for end in self._shutdowns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        for exporter in self._exporters:
            exporter.shutdown()  # ends its waiting for another try, which is then counted
        for thread in threads:
            thread.join()


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
