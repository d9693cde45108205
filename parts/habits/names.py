"""Other servers' names for what we measure, made from our series at the moment of a scrape.

Nothing is counted twice: an alias sums its source over the labels it does not keep.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from prometheus_client.core import Metric

from parts.habits.table import table
from service.telemetry.metrics import MetricNames, Page
from service.telemetry.series import PREFIX


@dataclass(frozen=True, slots=True)
class Alias:
    """Another server's name of a series; `name` and `source` without suffixes, `source` without our
    prefix."""

    name: str
    source: str
    only: Mapping[str, str] = field(default_factory=dict)  # samples with these labels
    keep: Collection[str] = ()  # labels besides the model's
    is_gauge: bool = False  # whatever the source is: the name has no suffix

    @property
    def source_family(self) -> str:
        """The name of our family that the alias is made from."""
        return PREFIX + self.source


@cache
def aliases(server: str) -> tuple[Alias, ...]:
    """The names of one server, `nim` or `vllm`."""
    return tuple(
        Alias(name, source) if isinstance(source, str) else Alias(name, **source)
        for name, source in table("metrics")[server].items()
    )


# What the router of the Gateway API Inference Extension also reads, in labels.
CACHE_INFO = "vllm:cache_config_info"
LORA_INFO = "vllm:lora_requests_info"
_LABEL_NAMES = {"model": "model_name", "le": "le"}


def renamed(
    aliases: Iterable[Alias], families: Mapping[str, Metric], constant: Mapping[str, str]
) -> Iterator[Metric]:
    """The families under their aliases; a family that is not there has no alias now."""
    for alias in aliases:
        source = families.get(alias.source_family)
        if source is not None:
            yield _renamed(alias, source, constant)


def _renamed(alias: Alias, source: Metric, constant: Mapping[str, str]) -> Metric:
    names = _LABEL_NAMES | {label: label for label in alias.keep}
    totals: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
    for sample in source.samples:
        if all(sample.labels[label] == value for label, value in alias.only.items()):
            labels = tuple(
                (names[key], sample.labels[key]) for key in names if key in sample.labels
            )
            totals[sample.name.removeprefix(source.name), labels] += sample.value
    kind = "gauge" if alias.is_gauge else source.type
    family = Metric(alias.name, source.documentation, kind)
    for (suffix, kept), value in totals.items():
        family.add_sample(
            alias.name + ("" if alias.is_gauge else suffix), {**constant, **dict(kept)}, value
        )
    return family


def router_infos(
    families: Mapping[str, Metric], constant: Mapping[str, str], now: float
) -> Iterator[Metric]:
    """The series that routers read as labels: the size of the KV cache, and which
    adapters are in use: none, unless their part tells."""
    blocks = families.get(f"{PREFIX}engine_kv_blocks")
    size = families.get(f"{PREFIX}engine_kv_block_tokens")
    if blocks is None or size is None:
        return
    cache = Metric(CACHE_INFO, "KV cache: number of blocks and tokens per block.", "gauge")
    labels = {
        "block_size": f"{size.samples[0].value:.0f}",
        "num_gpu_blocks": f"{blocks.samples[0].value:.0f}",
    }
    cache.add_sample(CACHE_INFO, {**constant, **labels}, 1)
    yield cache
    if LORA_INFO in families:
        return
    lora = Metric(LORA_INFO, "LoRA adapters in use (always none).", "gauge")
    adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    lora.add_sample(LORA_INFO, {**constant, **adapters}, now)
    yield lora


class _Names(MetricNames):
    def families(
        self, page: Page, families: Mapping[str, Metric], model: Mapping[str, str]
    ) -> Iterator[Metric]:
        if page == "nim":
            yield from renamed(aliases("nim"), families, model)
        constant = {**model, "engine": "0"}
        yield from router_infos(families, constant, time.time())
        yield from renamed(aliases("vllm"), families, constant)


NAMES: Final = _Names()
