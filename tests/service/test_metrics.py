"""/v1/metrics: the names dashboards rely on, and that they count what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
DOCS = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SCRIPT = "<|channel|>final<|message|>Hi there<|return|>"
NIM_NAMES = {
    "num_requests_running",
    "num_requests_waiting",
    "gpu_cache_usage_perc",
    "prompt_tokens_total",
    "generation_tokens_total",
    "time_to_first_token_seconds_count",
    "time_per_output_token_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_success_total",
    "request_failure_total",
    "request_finish_total",
}


@pytest.fixture
def scrape(make_client: Fixture, chat_body: Fixture) -> Fixture:
    """Send a request to the runtime; give every sample by name, labels other than the model's."""

    async def read(runtime: Any, **changes: Any) -> dict[str, float]:
        client = await make_client(runtime)
        await client.post(PATH, json=chat_body(**changes))
        samples: dict[str, float] = {}
        text = (await client.get("/v1/metrics")).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                assert sample.labels["model_name"] == "gpt-oss-20b"
                reason = sample.labels.get("finished_reason")
                samples[f"{sample.name}:{reason}" if reason else sample.name] = sample.value
                assert f"`{family.name}" in DOCS, f"{family.name} is not documented"
        return samples

    return read


async def test_a_success_is_counted_and_timed(
    make_runtime: Fixture, scrape: Fixture, harmony_ids: Fixture
) -> None:
    samples = await scrape(make_runtime(SCRIPT))
    assert {name.partition(":")[0] for name in samples} >= NIM_NAMES
    assert samples["request_success_total"] == 1
    assert samples["request_failure_total"] == 0
    assert samples["request_finish_total:stop"] == 1
    assert samples["generation_tokens_total"] == len(harmony_ids(SCRIPT))
    assert samples["time_to_first_token_seconds_count"] == 1
    assert samples["time_per_output_token_seconds_count"] == 1
    assert samples["e2e_request_latency_seconds_sum"] > samples["time_to_first_token_seconds_sum"]
    assert samples["num_requests_running"] == 0
    assert not any(name.endswith("_created") for name in samples)


async def test_a_failure_is_counted_and_not_timed(make_runtime: Fixture, scrape: Fixture) -> None:
    samples = await scrape(make_runtime(SCRIPT, fail_at=2), stream=True)
    assert samples["request_failure_total"] == 1
    assert samples["request_success_total"] == 0
    assert samples["request_finish_total:error"] == 1
    assert samples["time_to_first_token_seconds_count"] == 0


async def test_every_choice_is_counted_by_why_it_ended(
    make_runtime: Fixture, scrape: Fixture
) -> None:
    samples = await scrape(make_runtime(SCRIPT), n=3, max_tokens=3)
    assert samples["request_finish_total:length"] == 3


async def test_mended_messages_are_counted(make_runtime: Fixture, scrape: Fixture) -> None:
    samples = await scrape(make_runtime("no header at all<|return|>"))
    assert samples["harmony_resyncs_total"] >= 1


async def test_a_refused_request_touches_nothing(make_runtime: Fixture, scrape: Fixture) -> None:
    samples = await scrape(make_runtime(SCRIPT), temperature=9)
    assert samples["request_failure_total"] == 0
    assert samples["prompt_tokens_total"] == 0
