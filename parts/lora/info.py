"""Which adapters run and wait, as the series that routers read of vLLM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from engines.queueing.adapter_counts import RUNNING, WAITING
from service.telemetry.metrics import Metrics

NAME: Final = "vllm:lora_requests_info"


class AdapterInfo(Collector):
    """By the engines' last reading; the value is the time, as vLLM has it."""

    def __init__(self, metrics: Metrics, max_adapters: int) -> None:
        self._metrics, self._max = metrics, max_adapters

    def collect(self) -> Iterator[Metric]:
        stats = self._metrics.engine_stats
        levels = stats.levels if stats is not None else {}

        def names(kind: str) -> str:
            used = (each.removeprefix(kind) for each in levels if each.startswith(kind))
            return ",".join(sorted(used))

        metric = Metric(NAME, "LoRA adapters in use.", "gauge")
        labels = {
            "max_lora": str(self._max),
            "running_lora_adapters": names(RUNNING),
            "waiting_lora_adapters": names(WAITING),
        }
        metric.add_sample(NAME, labels, time.time())
        yield metric
