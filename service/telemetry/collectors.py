"""What the engine counts and the GPUs do, as series: each from its last reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from engines.base import EngineInfo, EngineStats
from profiles.hardware.usage import GpuUsage
from service.telemetry.processes import read_processes, start_time
from service.telemetry.series import (
    ACCEPTED,
    CERTIFICATE_EXPIRES,
    DOWNLOAD_SIZE,
    DOWNLOADED,
    ENGINES_HEALTHY,
    GPU,
    INFO,
    KEY_EXPIRES,
    MAX_REQUESTS,
    PROCESS,
    PROCESS_START,
    REPLICA_SLOW,
    REPLICA_UP,
    RESTARTS,
    START_TIME,
    STARTING,
    STEP,
    UP,
    Series,
    engine_series,
)

ReadGpus = Callable[[], Sequence[GpuUsage]]


class EngineState(NamedTuple):
    """What is known of the engine without asking it."""

    num_restarts: int = 0
    have_bytes: int = 0  # of the model's files, while they are fetched
    total_bytes: int = 0
    are_up: tuple[bool, ...] = (False,)  # whether each replica answers
    are_slow: tuple[bool, ...] = ()  # whether requests avoid it
    is_starting: bool = False
    start_s: float = 0.0  # that the start took, or has taken so far


class EngineCollector(Collector):
    """The engine's counts as of its last reading; fewer without one, as a dead engine's would be
    stale."""

    def __init__(
        self,
        model_name: str,
        state: Callable[[], EngineState],
        about: Mapping[str, str] | None = None,
    ) -> None:
        """`about`: the labels of `harmonium_info`, beside the model."""
        self._about = about or {}
        self.snapshot: tuple[EngineStats, EngineInfo] | None = None
        self._labels = {"model": model_name}
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's metrics; without a snapshot only that it is down, and its restarts."""
        state = self._state()
        yield self._metric(RESTARTS, state.num_restarts)
        yield self._metric(DOWNLOADED, state.have_bytes)
        yield self._metric(DOWNLOAD_SIZE, state.total_bytes)
        yield self._metric(STARTING, state.is_starting)
        yield self._metric(START_TIME, state.start_s)
        yield self._metric(UP, self.snapshot is not None)
        yield self._metric(INFO, 1, {**dict.fromkeys(INFO.labels[1:], ""), **self._about})
        yield self._metric(ENGINES_HEALTHY, sum(state.are_up))
        yield self._replicas(REPLICA_UP, state.are_up)
        yield self._replicas(REPLICA_SLOW, state.are_slow)
        if self.snapshot is None:
            return
        stats, info = self.snapshot
        yield self._metric(MAX_REQUESTS, info.max_num_seqs)
        for item in engine_series():
            yield self._metric(item.series, item.value(stats))
        yield self._steps(stats)
        yield self._accepted(stats)

    def _metric(
        self, series: Series, value: float, labels: Mapping[str, str] | None = None
    ) -> Metric:
        metric = Metric(series.family, series.text, series.kind)
        metric.add_sample(series.sample, {**self._labels, **(labels or {})}, value)
        return metric

    def _steps(self, stats: EngineStats) -> Metric:
        metric = Metric(STEP.family, STEP.text, STEP.kind)
        bounds = [*(f"{bound:.1f}" for bound in STEP.buckets), "+Inf"]
        counts = list(accumulate(stats.steps_by_tokens))
        for bound, count in zip(bounds, counts, strict=False):
            metric.add_sample(STEP.sample, {**self._labels, "le": bound}, count)
        if counts:
            metric.add_sample(f"{STEP.family}_count", self._labels, counts[-1])
            metric.add_sample(f"{STEP.family}_sum", self._labels, stats.step_tokens)
        return metric

    def _accepted(self, stats: EngineStats) -> Metric:
        metric = Metric(ACCEPTED.family, ACCEPTED.text, ACCEPTED.kind)
        for position, count in enumerate(stats.accepted_by_position):
            metric.add_sample(ACCEPTED.sample, {**self._labels, "position": str(position)}, count)
        return metric

    def _replicas(self, series: Series, values: Sequence[bool]) -> Metric:
        metric = Metric(series.family, series.text, series.kind)
        for number, value in enumerate(values):
            metric.add_sample(series.sample, {**self._labels, "engine": str(number)}, value)
        return metric


class ProcessCollector(Collector):
    """What the server's processes use, read when it is asked."""

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with a sample for each part of the server."""
        usage = read_processes()
        for item in PROCESS:
            series = item.series
            metric = Metric(series.family, series.text, series.kind)
            for part, used in usage.items():
                metric.add_sample(series.sample, {"process": part}, item.value(used))
            yield metric
        started = Metric(PROCESS_START.family, PROCESS_START.text, PROCESS_START.kind)
        started.add_sample(PROCESS_START.sample, {}, start_time())
        yield started


class ExpiryCollector(Collector):
    """When keys and the TLS certificate expire."""

    def __init__(
        self,
        keys: Callable[[], Mapping[str, float]],
        certificate: Callable[[], float | None],
    ) -> None:
        """`certificate` may block."""
        self._keys, self._certificate = keys, certificate

    def collect(self) -> Iterator[Metric]:
        for series, values in (
            (KEY_EXPIRES, [({"key": id}, at) for id, at in self._keys().items()]),
            (CERTIFICATE_EXPIRES, [({}, at) for at in (self._certificate(),) if at is not None]),
        ):
            metric = Metric(series.family, series.text, series.kind)
            for labels, value in values:
                metric.add_sample(series.sample, labels, value)
            if metric.samples:
                yield metric


class GpuCollector(Collector):
    """The GPUs' readings by their index; what a board does not tell is left out."""

    def __init__(self) -> None:
        self.usage: Sequence[GpuUsage] = ()

    def collect(self) -> Iterator[Metric]:
        """Yield each metric that some board has a reading of."""
        for item in GPU:
            series = item.series
            metric = Metric(series.family, series.text, series.kind)
            for usage in self.usage:
                value = item.value(usage)
                if value is not None:
                    metric.add_sample(series.sample, {"gpu": str(usage.index)}, value)
            if metric.samples:
                yield metric
