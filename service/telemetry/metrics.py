"""Every Prometheus series, named once. Names are NIM 1.x's, so its dashboards work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from engines.base import Engine, EngineStats
from engines.errors import EngineError
from service.telemetry.shared import registry_of_all

if TYPE_CHECKING:
    from service.generation import Generation

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_STATS_TIMEOUT_S = 2.0

_LABELS = ("model_name",)
_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TPOT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_E2E_S = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)

ENGINE_SERIES: dict[str, tuple[type[Metric], str, Callable[[EngineStats], float]]] = {
    "num_requests_running": (
        GaugeMetricFamily,
        "Requests the engine is generating for.",
        lambda stats: stats.num_running,
    ),
    "num_requests_waiting": (
        GaugeMetricFamily,
        "Requests waiting for room in the engine.",
        lambda stats: stats.num_waiting,
    ),
    "gpu_cache_usage_perc": (
        GaugeMetricFamily,
        "Share of KV cache blocks in use, 0 to 1, whatever the device.",
        lambda stats: stats.kv_usage,
    ),
    "prompt_tokens_total": (
        CounterMetricFamily,
        "Prompt tokens the engine took.",
        lambda stats: stats.prompt_tokens,
    ),
    "generation_tokens_total": (
        CounterMetricFamily,
        "Tokens the engine generated.",
        lambda stats: stats.generated_tokens,
    ),
    "prefix_cache_queries_total": (
        CounterMetricFamily,
        "Prompt tokens looked up in the prefix cache.",
        lambda stats: stats.prefix_cache_queries,
    ),
    "prefix_cache_hits_total": (
        CounterMetricFamily,
        "Prompt tokens found in the prefix cache.",
        lambda stats: stats.prefix_cache_hits,
    ),
    "num_preemptions_total": (
        CounterMetricFamily,
        "Requests put back because KV blocks ran out.",
        lambda stats: stats.num_preemptions,
    ),
}


class Metrics:
    """The series of one process; nothing is touched per token."""

    def __init__(
        self,
        model_name: str,
        num_restarts: Callable[[], int] = lambda: 0,
        shared_folder: Path | None = None,
    ) -> None:
        """`shared_folder`: where the workers count together (service/telemetry/shared.py)."""
        # Without it every series would have a `_created` twin.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._scraped = registry_of_all(shared_folder) if shared_folder else self.registry
        self._model_name = model_name
        self._stats = _StatsCollector(model_name, num_restarts)
        self._scraped.register(self._stats)
        self._time_to_first = self._histogram(
            "time_to_first_token_seconds", "Request accepted to first token.", _TTFT_S
        )
        self._time_per_token = self._histogram(
            "time_per_output_token_seconds",
            "Mean time between a request's tokens after its first.",
            _TPOT_S,
        )
        self._time_whole = self._histogram(
            "e2e_request_latency_seconds", "Request accepted to last token.", _E2E_S
        )
        self._succeeded = self._counter("request_success", "Requests answered to their end.")
        self._failed = self._counter("request_failure", "Requests that an error ended.")
        self._resyncs = self._counter(
            "harmony_resyncs", "Malformed message headers from the model that were mended."
        )
        self._finished = Counter(
            "request_finish",
            "Choices by why they ended; abort is a client that left.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )

    def observe(self, generation: Generation) -> None:
        """Count a generation that has ended, however it ended."""
        if generation.outcome == "success":
            self._succeeded.inc()
            self._observe_times(generation)
        elif generation.outcome == "failure":
            self._failed.inc()
        for choice in generation.choices:
            reason = choice.finish_reason or (
                "error" if generation.outcome == "failure" else "abort"
            )
            self._finished.labels(self._model_name, reason).inc()
        self._resyncs.inc(generation.num_resyncs)

    async def render(self, engine: Engine) -> bytes:
        """The exposition, with a fresh snapshot of the engine if it answers."""
        try:
            async with asyncio.timeout(_STATS_TIMEOUT_S):
                self._stats.snapshot = await engine.stats()
        except (EngineError, TimeoutError):
            self._stats.snapshot = None
        return generate_latest(self._scraped)

    def _observe_times(self, generation: Generation) -> None:
        first, ended = generation.first_token_at, generation.ended_at
        if first is None or ended is None:
            return
        self._time_to_first.observe(first - generation.started_at)
        self._time_whole.observe(ended - generation.started_at)
        longest = max(choice.num_tokens for choice in generation.choices)
        if longest > 1:
            self._time_per_token.observe((ended - first) / (longest - 1))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self.registry).labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, _LABELS, registry=self.registry, buckets=buckets)
        return histogram.labels(self._model_name)


class _StatsCollector(Collector):
    """The engine's own counts, from the last snapshot."""

    def __init__(self, model_name: str, num_restarts: Callable[[], int]) -> None:
        self.snapshot: EngineStats | None = None
        self._labels = [model_name]
        self._num_restarts = num_restarts

    def collect(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            "engine_restarts", "Times the engine process was started again.", labels=_LABELS
        )
        restarts.add_metric(self._labels, self._num_restarts())
        yield restarts
        if self.snapshot is None:
            return
        for name, (family, text, value) in ENGINE_SERIES.items():
            metric = family(name, text, labels=_LABELS)  # type: ignore[call-arg]
            metric.add_metric(self._labels, value(self.snapshot))  # type: ignore[attr-defined]
            yield metric
