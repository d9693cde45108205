"""What GPUs do as series, from the last reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from profiles.gpu_usage import GpuUsage
from service.telemetry.series import GPU

ReadGpus = Callable[[], Sequence[GpuUsage]]


class GpuCollector(Collector):
    """Boards by their index; what a board does not tell is left out."""

    def __init__(self) -> None:
        self.usage: Sequence[GpuUsage] = ()

    def collect(self) -> Iterator[Metric]:
        for item in GPU:
            series = item.series
            metric = Metric(series.family, series.text, series.kind)
            for usage in self.usage:
                value = item.value(usage)
                if value is not None:
                    metric.add_sample(series.sample, {"gpu": str(usage.index)}, value)
            if metric.samples:
                yield metric
