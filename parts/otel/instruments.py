"""Metrics over OTLP: the GenAI conventions' own, and the engine's counts, asked when sent."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider

from engines.base import Engine, EngineStats
from engines.errors import EngineError
from service.answer.generation import Generation
from service.telemetry.series import EngineSeries, engine_series

_DURATION_S = [0.01 * 2**power for power in range(14)]
_PER_TOKEN_S = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
_FIRST_TOKEN_S = [
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
]
_TOKENS = [float(4**power) for power in range(14)]

_PATIENCE_S: Final = 2.0
_SAME_S: Final = 1.0  # one answer serves all series of a collection

Callback = Callable[[CallbackOptions], Iterable[Observation]]


class Instruments:
    """The GenAI conventions' histograms, recorded for each generation that has ended."""

    def __init__(self, provider: MeterProvider, model: str) -> None:
        meter = provider.get_meter("harmonium")

        def histogram(name: str, unit: str, text: str, bounds: list[float]) -> Any:
            return meter.create_histogram(
                name, unit, text, explicit_bucket_boundaries_advisory=bounds
            )

        self._model = model
        self._duration = histogram(
            "gen_ai.server.request.duration", "s", "Request to last token.", _DURATION_S
        )
        self._per_token = histogram(
            "gen_ai.server.time_per_output_token", "s", "After the first token.", _PER_TOKEN_S
        )
        self._first_token = histogram(
            "gen_ai.server.time_to_first_token", "s", "Request to first token.", _FIRST_TOKEN_S
        )
        self._usage = histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of prompts and answers.", _TOKENS
        )

    def observe(self, generation: Generation) -> None:
        """Record a generation; times other than the whole only when it succeeded."""
        is_text = generation.plan.context.route == "/v1/completions"
        labels = {
            "gen_ai.operation.name": "text_completion" if is_text else "chat",
            "gen_ai.provider.name": "harmonium",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
        }
        ended, first = generation.ended_at, generation.first_token_at
        if ended is None:
            return
        failed = {"error.type": generation.error_type or "_OTHER"}
        whole = labels | failed if generation.outcome == "failure" else labels
        self._duration.record(ended - generation.started_at, whole)
        for kind, number in (
            ("input", generation.num_prompt_tokens),
            ("output", generation.num_completion_tokens),
        ):
            self._usage.record(number, {**labels, "gen_ai.token.type": kind})
        if generation.outcome != "success" or first is None:
            return
        self._first_token.record(first - generation.started_at, labels)
        longest = max(choice.num_tokens for choice in generation.choices)
        if longest > 1:
            self._per_token.record((ended - first) / (longest - 1), labels)


class EngineGauges:
    """The engine's counts, observed in the reader's thread and asked for in the serving loop."""

    def __init__(
        self, provider: MeterProvider, model: str, engine: Engine, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._labels = {"gen_ai.request.model": model}
        self._stats: EngineStats | None = None
        self._asked_at = 0.0
        meter = provider.get_meter("harmonium")
        for item in engine_series():
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
