"""/v1/metrics and /metrics: the names dashboards rely on, and that they count what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from auth.base import Credentials, InvalidCredentials, Principal
from service.request import Notes, RequestContext
from service.telemetry.collectors import EngineState
from service.telemetry.metrics import Metrics
from service.telemetry.series import (
    ACCEPTED,
    CERTIFICATE_EXPIRES,
    KEY_EXPIRES,
    REPLICA_SLOW,
    STEP,
)
from tools.docs.series import all_series

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
SCRIPT = (
    "<|channel|>analysis<|message|>Hm.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Hi there<|return|>"
)
OURS = {"route": PATH, "model": "gpt-oss-20b", "tenant_class": "anonymous"}


class Scrape:
    """The samples of one page."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]
        self.names = {sample.name for sample in self.samples}

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        found = [
            s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()
        ]
        assert found, f"no sample {name} with {labels}"
        return sum(found)

    def labels(self, name: str) -> list[dict[str, str]]:
        return [sample.labels for sample in self.samples if sample.name == name]


@pytest.fixture
def scrape(make_client: Fixture, chat_body: Fixture) -> Fixture:
    """Send a request to the runtime and scrape it."""

    async def read(runtime: Any, page: str = "/v1/metrics", **changes: Any) -> Scrape:
        client = await make_client(runtime)
        await client.post(PATH, json=chat_body(**changes))
        return Scrape((await client.get(page)).text)

    return read


async def test_a_success_is_counted_and_timed(
    make_runtime: Fixture, scrape: Fixture, harmony_ids: Fixture
) -> None:
    page = await scrape(make_runtime(SCRIPT))
    num_tokens = len(harmony_ids(SCRIPT))
    assert page.value("harmonium_requests_total", outcome="success") == 1
    assert page.value("harmonium_requests_total", outcome="failure") == 0
    assert page.value("harmonium_finish_total", finished_reason="stop") == 1
    assert page.value("harmonium_engine_generated_tokens_total") == num_tokens
    assert page.value("harmonium_time_to_first_token_seconds_count") == 1
    assert page.value("harmonium_time_per_output_token_seconds_count") == 1
    whole_s = page.value("harmonium_e2e_latency_seconds_sum")
    assert whole_s > page.value("harmonium_time_to_first_token_seconds_sum")
    assert page.value("harmonium_engine_running_requests") == 0
    assert page.value("harmonium_engine_max_requests") == 256
    assert not any(name.endswith("_created") for name in page.names)


async def test_our_series_say_by_which_route_and_for_whom(
    make_runtime: Fixture, scrape: Fixture, harmony_ids: Fixture
) -> None:
    page = await scrape(make_runtime(SCRIPT))
    num_tokens = len(harmony_ids(SCRIPT))
    assert page.value("harmonium_requests_total", **OURS, outcome="success") == 1
    assert page.value("harmonium_completion_tokens_total", **OURS) == num_tokens
    assert page.value("harmonium_inter_token_latency_seconds_count", **OURS) == num_tokens - 1
    assert 0 < page.value("harmonium_reasoning_tokens_total", **OURS) < num_tokens
    assert page.value("harmonium_output_tokens_per_second_count", **OURS) == 1
    assert page.value("harmonium_http_requests_total", route=PATH, status="200") == 1
    whole_s = page.value("harmonium_e2e_latency_seconds_sum", **OURS)
    parts = ("queue_time", "prefill_time", "decode_time")
    parts_s = sum(page.value(f"harmonium_{part}_seconds_sum", **OURS) for part in parts)
    assert parts_s == pytest.approx(whole_s, rel=0.05)


async def test_tokens_of_one_step_share_its_time(make_runtime: Fixture, scrape: Fixture) -> None:
    page = await scrape(make_runtime(SCRIPT, tokens_per_step=4), max_tokens=12)
    assert page.value("harmonium_inter_token_latency_seconds_count") == 8


async def test_waiting_is_told_apart_from_computing(make_runtime: Fixture, scrape: Fixture) -> None:
    page = await scrape(make_runtime(SCRIPT, max_num_seqs=1, step_s=0.002), n=2)
    queue_s = page.value("harmonium_queue_time_seconds_sum")
    assert 0.002 <= queue_s < page.value("harmonium_e2e_latency_seconds_sum")


def test_only_named_tenants_get_series_of_their_own() -> None:
    metrics = Metrics("gpt-oss-20b", tenants=("acme",))
    names = ("acme", "a stranger", "another", "")
    assert {metrics.tenant_class(name) for name in names} == {"acme", "other", "anonymous"}


async def test_a_failure_is_counted_and_not_timed(make_runtime: Fixture, scrape: Fixture) -> None:
    page = await scrape(make_runtime(SCRIPT, fail_at=2), stream=True)
    assert page.value("harmonium_requests_total", outcome="failure") == 1
    assert page.value("harmonium_requests_total", outcome="success") == 0
    assert page.value("harmonium_finish_total", finished_reason="error") == 1
    assert page.value("harmonium_time_to_first_token_seconds_count") == 0


async def test_every_choice_is_counted_by_why_it_ended(
    make_runtime: Fixture, scrape: Fixture
) -> None:
    page = await scrape(make_runtime(SCRIPT), n=3, max_tokens=3)
    assert page.value("harmonium_finish_total", finished_reason="length") == 3


async def test_mended_messages_are_counted(make_runtime: Fixture, scrape: Fixture) -> None:
    page = await scrape(make_runtime("no header at all<|return|>"))
    assert page.value("harmonium_harmony_resyncs_total") >= 1


async def test_a_refused_request_is_counted_as_an_answer_only(
    make_runtime: Fixture, scrape: Fixture
) -> None:
    page = await scrape(make_runtime(SCRIPT), temperature=9)
    assert page.value("harmonium_requests_total", outcome="failure") == 0
    assert page.value("harmonium_engine_prompt_tokens_total") == 0
    assert page.value("harmonium_http_requests_total", status="400") == 1


async def test_paths_that_are_not_ours_share_one_label(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    for path in ("/a", "/b", "/v1/nothing"):
        await client.get(path)
    page = Scrape((await client.get("/metrics")).text)
    assert page.value("harmonium_http_requests_total", route="other", status="404") == 3


async def test_refusals_by_a_limit_are_counted_by_code_and_tenant(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    runtime = make_runtime(SCRIPT, max_num_seqs=1, max_num_waiting=1, step_s=0.05)
    client = await make_client(runtime)
    answers = await asyncio.gather(
        *(client.post(PATH, json=chat_body(max_tokens=3)) for _ in range(4))
    )
    num_refused = sum(answer.status_code == 429 for answer in answers)
    assert num_refused
    page = Scrape((await client.get("/metrics")).text)
    labels = {"limit": "queue_full", "tenant_class": "anonymous"}
    assert page.value("harmonium_rate_limited_total", **labels) == num_refused
    assert page.value("harmonium_errors_total", route=PATH, code="queue_full") == num_refused


async def test_each_replica_and_what_is_served_is_told(make_runtime: Fixture) -> None:
    about = {"version": "1.2.3", "profile": "p", "engine": "native", "gpu": "h100x1"}
    state = EngineState(2, 5, 9, (True, False), (False, True))
    metrics = Metrics("gpt-oss-20b", lambda: state, about=about)
    page = Scrape((await metrics.render(make_runtime(SCRIPT).engine)).decode())
    assert page.value("harmonium_info", model="gpt-oss-20b", **about) == 1
    assert page.value("harmonium_engines_healthy") == 1
    assert [page.value("harmonium_engine_replica_up", engine=n) for n in "01"] == [1, 0]
    assert [page.value("harmonium_engine_replica_slow", engine=n) for n in "01"] == [0, 1]
    assert page.value("harmonium_engine_restarts_total") == 2
    assert (
        page.value("harmonium_download_bytes"),
        page.value("harmonium_download_size_bytes"),
    ) == (
        5,
        9,
    )


async def test_a_start_is_counted_until_it_has_ended(make_runtime: Fixture) -> None:
    state = EngineState(is_starting=True, start_s=42.0)
    metrics = Metrics("gpt-oss-20b", lambda: state)
    page = Scrape((await metrics.render(make_runtime(SCRIPT).engine)).decode())
    assert page.value("harmonium_starting") == 1
    assert page.value("harmonium_start_duration_seconds") == 42


async def test_what_is_written_is_what_the_table_says(
    make_runtime: Fixture, scrape: Fixture
) -> None:
    runtime = make_runtime(SCRIPT)
    runtime.metrics.count_auth_failure("invalid")
    refused = RequestContext("r", PATH, notes=Notes(error_code="queue_full", num_unread=1))
    runtime.metrics.count_answer(refused, 429, 0.1)
    runtime.metrics.count_dropped("logs", 1)
    page = await scrape(runtime)
    written = {name for name in page.names if name.startswith(("harmonium_", "process_"))}
    # The engine is scripted, alone and on a CPU; there are no keys and no certificate.
    missing = (STEP, ACCEPTED, KEY_EXPIRES, CERTIFICATE_EXPIRES, REPLICA_SLOW)
    absent = ("gpu_", *(each.name for each in missing))
    known = {series.sample for series in all_series() if not series.name.startswith(absent)}
    parts = ("_count", "_sum")
    assert {name for name in written if not name.endswith(parts)} == known


async def test_callers_are_counted_by_tenant_or_by_why_they_were_turned_away(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    runtime = make_runtime(SCRIPT, authenticator=OneKey())
    client = await make_client(runtime)
    headers = {"Authorization": "Bearer right", "X-Request-Id": "r-1"}
    assert (await client.post(PATH, json=chat_body(), headers=headers)).status_code == 200
    wrong = {"Authorization": "Bearer wrong"}
    assert (await client.post(PATH, json=chat_body(), headers=wrong)).status_code == 401
    assert (await client.post(PATH, json=chat_body())).status_code == 401
    page = Scrape((await client.get("/metrics", headers=headers)).text)
    assert page.value("harmonium_requests_total", route=PATH, tenant_class="other") == 1
    assert page.value("harmonium_auth_failures_total", reason="invalid") == 1
    assert page.value("harmonium_auth_failures_total", reason="missing") == 1


class OneKey:
    """Knows one tenant."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.value != "right":
            raise InvalidCredentials("wrong")
        return Principal("someone", tenant_id="acme")
