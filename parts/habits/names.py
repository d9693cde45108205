"""Other servers' names for what we measure, made from our series at the moment of a scrape.

Nothing is counted twice: an alias sums its source over the labels it does not keep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from service.telemetry.series import PREFIX


@dataclass(frozen=True, slots=True)
class Alias:
    """Another server's name of a series; `name` and `source` without suffixes, `source` without our
    prefix."""

    name: str
    source: str
    only: Mapping[str, str] = field(default_factory=dict)  # samples with these labels
    keep: tuple[str, ...] = ()  # labels besides the model's
    is_gauge: bool = False  # whatever the source is: the name has no suffix

    @property
    def source_family(self) -> str:
        """The name of our family that the alias is made from."""
        return PREFIX + self.source


NIM: tuple[Alias, ...] = (
    Alias("num_requests_running", "engine_running_requests"),
    Alias("num_requests_waiting", "engine_waiting_requests"),
    Alias("num_request_max", "engine_max_requests"),
    Alias("gpu_cache_usage_perc", "engine_kv_usage_ratio"),
    Alias("prompt_tokens", "engine_prompt_tokens"),
    Alias("generation_tokens", "engine_generated_tokens"),
    Alias("time_to_first_token_seconds", "time_to_first_token_seconds"),
    Alias("time_per_output_token_seconds", "time_per_output_token_seconds"),
    Alias("e2e_request_latency_seconds", "e2e_latency_seconds"),
    Alias("request_prompt_tokens", "request_prompt_tokens"),
    Alias("request_generation_tokens", "request_completion_tokens"),
    Alias("request_success", "requests", only={"outcome": "success"}),
    Alias("request_failure", "requests", only={"outcome": "failure"}),
    Alias("request_finish", "finish", keep=("finished_reason",)),
    Alias("gpu_utilization", "gpu_utilization_ratio", keep=("gpu",)),
    Alias("gpu_memory_used_bytes", "gpu_memory_used_bytes", keep=("gpu",)),
    Alias("gpu_memory_total_bytes", "gpu_memory_total_bytes", keep=("gpu",)),
    Alias("gpu_power_usage_watts", "gpu_power_watts", keep=("gpu",)),
    Alias("gpu_power_limit_watts", "gpu_power_limit_watts", keep=("gpu",)),
    Alias("gpu_total_energy_consumption_joules", "gpu_energy_joules", keep=("gpu",), is_gauge=True),
)
VLLM: tuple[Alias, ...] = (
    Alias("vllm:num_requests_running", "engine_running_requests"),
    Alias("vllm:num_requests_waiting", "engine_waiting_requests"),
    Alias("vllm:kv_cache_usage_perc", "engine_kv_usage_ratio"),
    Alias("vllm:prefix_cache_queries", "engine_prefix_cache_queries"),
    Alias("vllm:prefix_cache_hits", "engine_prefix_cache_hits"),
    Alias("vllm:spec_decode_num_draft_tokens", "engine_draft_tokens"),
    Alias("vllm:spec_decode_num_accepted_tokens", "engine_accepted_draft_tokens"),
    Alias("vllm:spec_decode_num_drafts", "engine_drafts"),
    Alias(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "engine_accepted_drafts",
        keep=("position",),
    ),
    Alias("vllm:iteration_tokens_total", "engine_step_tokens"),
    Alias("vllm:num_preemptions", "engine_preemptions"),
    Alias("vllm:prompt_tokens", "engine_prompt_tokens"),
    Alias("vllm:generation_tokens", "engine_generated_tokens"),
    Alias("vllm:time_to_first_token_seconds", "time_to_first_token_seconds"),
    Alias("vllm:inter_token_latency_seconds", "inter_token_latency_seconds"),
    Alias("vllm:request_time_per_output_token_seconds", "time_per_output_token_seconds"),
    Alias("vllm:e2e_request_latency_seconds", "e2e_latency_seconds"),
    Alias("vllm:request_queue_time_seconds", "queue_time_seconds"),
    Alias("vllm:request_prefill_time_seconds", "prefill_time_seconds"),
    Alias("vllm:request_decode_time_seconds", "decode_time_seconds"),
    Alias("vllm:request_prompt_tokens", "request_prompt_tokens"),
    Alias("vllm:request_generation_tokens", "request_completion_tokens"),
    Alias("vllm:request_inference_time_seconds", "inference_time_seconds"),
    Alias("vllm:request_params_n", "request_choices"),
    Alias("vllm:request_params_max_tokens", "request_max_tokens"),
    Alias("vllm:request_max_num_generation_tokens", "request_longest_choice_tokens"),
    # Older releases' name of the inter-token latency.
    Alias("vllm:time_per_output_token_seconds", "inter_token_latency_seconds"),
    Alias("vllm:request_success", "finish", keep=("finished_reason",)),
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
    """The series that routers read as labels: the size of the KV cache, and that there are no
    adapters."""
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
    lora = Metric(LORA_INFO, "LoRA adapters in use (always none).", "gauge")
    adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    lora.add_sample(LORA_INFO, {**constant, **adapters}, now)
    yield lora
