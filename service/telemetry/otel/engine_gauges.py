"""The engine's counts over OTLP, asked of it whenever the metrics are sent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider

from engines.base import Engine, EngineStats
from engines.errors import EngineError
from service.telemetry.series import ENGINE, EngineSeries

_PATIENCE_S: Final = 2.0
_SAME_S: Final = 1.0  # one answer serves all series of a collection

Callback = Callable[[CallbackOptions], Iterable[Observation]]


class EngineGauges:
    """Observed in the reader's thread; the loop that serves requests answers in between them."""

    def __init__(
        self,
        provider: MeterProvider,
        model: str,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._labels = {"gen_ai.request.model": model}
        self._stats: EngineStats | None = None
        self._asked_at = 0.0
        meter = provider.get_meter("harmonium")
        for item in ENGINE:
            name = item.series.name.replace("engine_", "harmonium.engine.", 1)
            is_gauge = item.series.kind == "gauge"
            create = meter.create_observable_gauge if is_gauge else meter.create_observable_counter
            create(name, [self._callback(item)], description=item.series.text)

    def _callback(self, item: EngineSeries) -> Callback:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            stats = self._fresh()
            return [] if stats is None else [Observation(item.value(stats), self._labels)]

        return observe

    def _fresh(self) -> EngineStats | None:
        if time.monotonic() - self._asked_at > _SAME_S:
            self._stats = self._ask()
            self._asked_at = time.monotonic()
        return self._stats

    def _ask(self) -> EngineStats | None:
        if self._loop.is_closed():
            return None
        asked = asyncio.run_coroutine_threadsafe(self._engine.stats(), self._loop)
        try:
            return asked.result(_PATIENCE_S)
        except (EngineError, TimeoutError, concurrent.futures.CancelledError):
            asked.cancel()
            return None
