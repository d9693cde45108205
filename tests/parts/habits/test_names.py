"""NIM's and vLLM's names of metrics: those that dashboards and routers rely on, with our values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from engines.base import StepCounts
from engines.errors import EngineDead
from parts.habits.names import aliases
from profiles.hardware.usage import GpuUsage
from service.telemetry.metrics import Metrics
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.service.telemetry.test_metrics import SCRIPT, Scrape
from tools.docs.series import all_series

Fixture = Callable[..., Any]

NIM_NAMES = {
    "num_requests_running",
    "num_requests_waiting",
    "num_request_max",
    "gpu_cache_usage_perc",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds_count",
    "time_per_output_token_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_prompt_tokens_count",
    "request_generation_tokens_count",
    "request_success_total",
    "request_failure_total",
    "request_finish_total",
}
VLLM_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_count",
    "vllm:request_time_per_output_token_seconds_count",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:request_queue_time_seconds_count",
    "vllm:request_prefill_time_seconds_count",
    "vllm:request_decode_time_seconds_count",
    "vllm:request_prompt_tokens_count",
    "vllm:request_generation_tokens_count",
    "vllm:request_success_total",
}


async def test_a_success_has_nims_names(
    make_runtime: Fixture, scrape: Fixture, harmony_ids: Fixture
) -> None:
    page = await scrape(make_runtime(SCRIPT))
    assert page.names >= NIM_NAMES
    assert page.value("request_success_total", model_name="gpt-oss-20b") == 1
    assert page.value("request_failure_total") == 0
    assert page.value("request_finish_total", finished_reason="stop") == 1
    assert page.value("generation_tokens_total") == len(harmony_ids(SCRIPT))
    assert page.value("time_to_first_token_seconds_count") == 1
    assert page.value("time_per_output_token_seconds_count") == 1
    whole_s = page.value("e2e_request_latency_seconds_sum")
    assert whole_s > page.value("time_to_first_token_seconds_sum")
    assert page.value("num_requests_running") == 0
    assert page.value("num_request_max") == 256
    assert not any(name.endswith("_created") for name in page.names)


async def test_vllms_names_have_the_same_values(make_runtime: Fixture, scrape: Fixture) -> None:
    page = await scrape(make_runtime(SCRIPT), page="/metrics")
    assert page.names >= VLLM_NAMES
    assert not page.names & NIM_NAMES
    labels = {"model_name": "gpt-oss-20b", "engine": "0"}
    assert page.value("vllm:request_success_total", **labels, finished_reason="stop") == 1
    gaps = page.value("vllm:inter_token_latency_seconds_count", **labels)
    assert gaps == page.value("harmonium_inter_token_latency_seconds_count")


async def test_steps_and_drafts_have_vllms_names_where_the_engine_counts_them(
    make_runtime: Fixture, scrape: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(SCRIPT)
    page = await scrape(runtime, page="/metrics")
    assert not any("iteration_tokens" in name or "per_pos" in name for name in page.names)
    counts = StepCounts()
    for num_tokens in (1, 7, 20_000):
        counts.count_step(num_tokens)
    counts.count_drafts(2, 6, [2, 1])
    stats = replace(await runtime.engine.stats(), **counts.of_steps())
    monkeypatch.setattr(runtime.engine, "stats", AsyncMock(return_value=stats))
    page = await scrape(runtime, page="/metrics")
    steps = "vllm:iteration_tokens_total"
    found = [page.value(f"{steps}_bucket", le=le) for le in ("1.0", "8.0", "16384.0", "+Inf")]
    assert found == [1, 2, 2, 3]
    assert (page.value(f"{steps}_count"), page.value(f"{steps}_sum")) == (3, 20_008)
    assert page.value("vllm:spec_decode_num_drafts_total") == 2
    per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [page.value(per_position, position=p) for p in "01"] == [2, 1]


async def test_inference_routers_find_their_gauges(make_runtime: Fixture, scrape: Fixture) -> None:
    """The model servers' protocol of the Gateway API Inference Extension."""
    page = await scrape(make_runtime(SCRIPT), page="/metrics")
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert page.value(f"vllm:{name}") == 0
    (cache,) = page.labels("vllm:cache_config_info")
    assert cache["block_size"] == "16"
    assert int(cache["num_gpu_blocks"]) > 0
    (adapters,) = page.labels("vllm:lora_requests_info")
    assert adapters["max_lora"] == "0"


async def test_gpus_have_nims_names_and_ours() -> None:
    usage = GpuUsage(3, 0.5, 7, 10, 200.0, 700.0, None)
    metrics = Metrics("gpt-oss-20b", read_gpus=lambda: (usage,))
    page = Scrape((await metrics.render(FakeEngine(FakeOptions(script=(1,))))).decode())
    assert page.value("gpu_utilization", gpu="3", model_name="gpt-oss-20b") == 0.5
    assert page.value("gpu_memory_used_bytes", gpu="3") == 7
    assert page.value("gpu_memory_total_bytes", gpu="3") == 10
    assert page.value("gpu_power_usage_watts", gpu="3") == 200
    assert page.value("harmonium_gpu_power_limit_watts", gpu="3") == 700
    assert "gpu_total_energy_consumption_joules" not in page.names


async def test_a_failure_has_nims_names(make_runtime: Fixture, scrape: Fixture) -> None:
    page = await scrape(make_runtime(SCRIPT, fail_at=2), stream=True)
    assert page.value("request_failure_total") == 1
    assert page.value("request_success_total") == 0
    assert page.value("request_finish_total", finished_reason="error") == 1
    assert page.value("time_to_first_token_seconds_count") == 0


def test_each_name_is_one_of_a_series_that_is_there() -> None:
    known = {series.name for series in all_series()}
    assert {alias.source for server in ("nim", "vllm") for alias in aliases(server)} <= known


async def test_names_of_the_engine_are_left_out_while_it_is_dead(
    make_runtime: Fixture, make_client: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(SCRIPT)
    client = await make_client(runtime)
    assert "num_requests_running" in (await client.get("/v1/metrics")).text
    monkeypatch.setattr(runtime.engine, "stats", AsyncMock(side_effect=EngineDead("gone")))
    text = (await client.get("/v1/metrics")).text
    assert "num_requests_running" not in text
    assert "request_success_total" in text
