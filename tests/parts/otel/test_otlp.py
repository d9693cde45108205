"""OpenTelemetry as a real collector sees it: traces, metrics and logs, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from auth.base import Credentials, Principal
from parts.otel import export
from parts.otel.providers import CountedExporter
from parts.otel.serving import SERVING
from service.run.launching import watching
from service.runtime import Runtime
from service.settings.settings import load

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
SCRIPT = (
    "<|channel|>analysis<|message|>Pondering.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>The capital is Paris.<|return|>"
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
TRACED = {
    "traceparent": f"00-{TRACE}-{CALLER}-01",
    "Authorization": "Bearer x",
    "X-Request-Id": "r",
}
PROTOCOLS = ["http/protobuf", "grpc"]
SLOW_S = 3600


class Anybody:
    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return Principal("someone")


@pytest.fixture
def traced(make_runtime: Fixture, make_client: Fixture, monkeypatch: pytest.MonkeyPatch) -> Fixture:
    """A client of a runtime that sends telemetry; what is left is handed over at the end.

    Arguments in capitals are variables of the standard.
    """

    @asynccontextmanager
    async def client(**settings: Any) -> AsyncIterator[tuple[Any, Runtime]]:
        runtime = make_runtime(SCRIPT, authenticator=Anybody())
        chosen = load({"enable_otel": True, **standard_apart(settings, monkeypatch)})
        root = logging.getLogger()
        level = root.level
        root.setLevel("INFO")
        runtime = SERVING.wire(runtime, chosen)
        telemetry = runtime.telemetry
        try:
            client = await make_client(runtime)
            telemetry.start(runtime.engine)
            yield client, runtime
        finally:
            await telemetry.close()
            root.setLevel(level)

    return client


@pytest.fixture
def brief_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CLOSE_S", 0.8)


def standard_apart(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings, once the variables of the standard are set."""
    for name, value in {"OTEL_SERVICE_NAME": "my-harmonium", **given}.items():
        if name.isupper():
            monkeypatch.setenv(name, value)
    return {name: value for name, value in given.items() if not name.isupper()}


def settings_for(collector: Any, protocol: str, **more: Any) -> dict[str, Any]:
    endpoint = collector.endpoints[protocol]
    return {
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "otel_exporter_otlp_endpoint": endpoint,
    } | more


def plain(attributes: list[Any]) -> dict[str, Any]:
    """OTLP's attributes as a dict."""

    def value(item: Any) -> Any:
        (kind, content), *_ = item.items()
        if kind == "arrayValue":
            return [value(part) for part in content["values"]]
        return int(content) if kind == "intValue" else content

    return {item["key"]: value(item["value"]) for item in attributes}


def spans_of(collector: Any) -> dict[str, dict[str, Any]]:
    spans: dict[str, dict[str, Any]] = {}
    for _, message in collector.received("traces"):
        for scope in message["resourceSpans"][0]["scopeSpans"]:
            spans |= {span["name"]: span for span in scope["spans"]}
    return spans


def hexadecimal(encoded: str) -> str:
    return base64.b64decode(encoded).hex()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_request_arrives_as_traces_metrics_and_logs(
    collector: Any, traced: Fixture, chat_body: Fixture, protocol: str
) -> None:
    body = chat_body(stream=True, temperature=0.5, seed=7, stop=["END"])
    async with traced(**settings_for(collector, protocol)) as (client, _):
        assert (await client.post(PATH, json=body, headers=TRACED)).status_code == 200
    transports = {
        transport
        for signal in ("traces", "metrics", "logs")
        for transport, _ in collector.received(signal)
    }
    assert transports == {protocol.partition("/")[0]}
    check_spans(spans_of(collector))
    check_resource(collector)
    check_metrics(collector)
    check_logs(collector)


def check_spans(spans: dict[str, dict[str, Any]]) -> None:
    names = {"auth", "chat gpt-oss-20b", "queue", "prefill", "decode", "parse"}
    server = spans.pop(f"POST {PATH}")
    assert spans.keys() == names
    assert {hexadecimal(span["traceId"]) for span in (server, *spans.values())} == {TRACE}
    assert hexadecimal(server["parentSpanId"]) == CALLER
    assert server["kind"] == "SPAN_KIND_SERVER"
    assert plain(server["attributes"])["http.response.status_code"] == 200
    generation = spans["chat gpt-oss-20b"]
    assert spans["auth"]["parentSpanId"] == generation["parentSpanId"] == server["spanId"]
    for name in ("queue", "prefill", "decode", "parse"):
        assert spans[name]["parentSpanId"] == generation["spanId"]
    for earlier, later in (("queue", "prefill"), ("prefill", "decode")):
        gap_ns = int(spans[later]["startTimeUnixNano"]) - int(spans[earlier]["endTimeUnixNano"])
        assert abs(gap_ns) < 1_000_000
    check_conventions(plain(generation["attributes"]))


def check_conventions(attributes: dict[str, Any]) -> None:
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "harmonium",
        "gen_ai.request.model": "gpt-oss-20b",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.output.type": "text",
        "harmonium.request.id": "r",
    }
    assert expected.items() <= attributes.items()
    assert attributes["gen_ai.usage.input_tokens"] > 0
    reasoning = attributes["gen_ai.usage.reasoning.output_tokens"]
    assert 0 < reasoning < attributes["gen_ai.usage.output_tokens"]
    assert "gen_ai.input.messages" not in attributes
    assert "gen_ai.output.messages" not in attributes


def check_resource(collector: Any) -> None:
    (_, message), *_ = collector.received("traces")
    resource = plain(message["resourceSpans"][0]["resource"]["attributes"])
    assert resource["service.name"] == "my-harmonium"
    assert resource["service.version"]
    assert resource["service.instance.id"]


def check_metrics(collector: Any) -> None:
    metrics = [
        metric
        for _, message in collector.received("metrics")
        for metric in message["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    ]
    found = {m["name"]: m["histogram"]["dataPoints"] for m in metrics if "histogram" in m}
    gauges = {m["name"]: m["gauge"]["dataPoints"][0] for m in metrics if "gauge" in m}
    counters = {m["name"]: m["sum"]["dataPoints"][0] for m in metrics if "sum" in m}
    assert gauges["harmonium.engine.running_requests"]["asInt"] == "0"
    assert counters["harmonium.engine.generated_tokens"]["asInt"] == "19"
    (first,) = found["gen_ai.server.time_to_first_token"]
    assert first["explicitBounds"][:3] == [0.001, 0.005, 0.01]
    assert first["count"] == "1"
    (whole,) = found["gen_ai.server.request.duration"]
    assert whole["explicitBounds"][-1] == 81.92
    assert plain(whole["attributes"])["gen_ai.operation.name"] == "chat"
    kinds = {
        plain(point["attributes"])["gen_ai.token.type"]
        for point in found["gen_ai.client.token.usage"]
    }
    assert kinds == {"input", "output"}
    assert "gen_ai.server.time_per_output_token" in found


def check_logs(collector: Any) -> None:
    records = [
        record
        for _, message in collector.received("logs")
        for record in message["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    ]
    (access,) = [r for r in records if plain(r["attributes"])["logger"] == "harmonium.access"]
    assert hexadecimal(access["traceId"]) == TRACE
    assert access["severityText"] == "INFO"
    attributes = plain(access["attributes"])
    assert attributes["harmonium.request.id"] == "r"
    assert attributes["access.status"] == "200"


@pytest.mark.parametrize("is_captured", [False, True])
async def test_prompts_and_answers_are_sent_only_when_switched_on(
    collector: Any, traced: Fixture, chat_body: Fixture, is_captured: bool
) -> None:
    body = chat_body(messages=[{"role": "user", "content": "What is the capital?"}])
    settings = settings_for(collector, "http/protobuf", otel_capture_content=is_captured)
    async with traced(**settings) as (client, _):
        await client.post(PATH, json=body, headers=TRACED)
    signals = ("traces", "metrics", "logs")
    sent = str([collector.received(signal) for signal in signals])
    assert ("What is the capital?" in sent) is is_captured
    assert ("The capital is Paris." in sent) is is_captured
    if is_captured:
        attributes = plain(spans_of(collector)["chat gpt-oss-20b"]["attributes"])
        assert (
            '{"type": "reasoning", "content": "Pondering."}' in attributes["gen_ai.output.messages"]
        )
        assert '"role": "user"' in attributes["gen_ai.input.messages"]


async def test_a_failed_generation_says_what_failed(
    collector: Any, make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    runtime = make_runtime(SCRIPT, fail_at=2)
    endpoint = collector.endpoints["http/protobuf"]
    settings = load({"enable_otel": True, "otel_exporter_otlp_endpoint": endpoint})
    runtime = SERVING.wire(runtime, settings)
    telemetry = runtime.telemetry
    client = await make_client(runtime)
    assert (await client.post(PATH, json=chat_body())).status_code == 500
    await telemetry.close()
    spans = spans_of(collector)
    assert plain(spans["chat gpt-oss-20b"]["attributes"])["error.type"] == "RequestFailed"
    assert spans[f"POST {PATH}"]["status"]["code"] == "STATUS_CODE_ERROR"


async def test_a_caller_that_does_not_sample_is_heeded(
    collector: Any, traced: Fixture, chat_body: Fixture
) -> None:
    headers = TRACED | {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    async with traced(**settings_for(collector, "http/protobuf")) as (client, _):
        await client.post(PATH, json=chat_body(), headers=headers)
    assert collector.received("traces") == []
    assert collector.received("metrics")


async def test_polling_leaves_no_traces(collector: Any, traced: Fixture) -> None:
    async with traced(**settings_for(collector, "http/protobuf")) as (client, _):
        for path in (
            "/v1/health/live",
            "/v1/health/ready",
            "/health",
            "/ping",
            "/load",
            "/v1/metrics",
            "/metrics",
        ):
            await client.get(path, headers=TRACED)
    assert collector.received("traces") == []


async def test_signals_can_be_left_out(collector: Any, traced: Fixture, chat_body: Fixture) -> None:
    settings = settings_for(collector, "http/protobuf")
    off = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    async with traced(**settings, **off) as (client, _):
        await client.post(PATH, json=chat_body(), headers=TRACED)
    assert collector.received("metrics") == collector.received("logs") == []
    assert collector.received("traces")


async def test_a_process_that_answers_no_requests_sends_its_log(
    collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = standard_apart(settings_for(collector, "http/protobuf"), monkeypatch)
    settings = load({"enable_otel": True, **given})
    [telemetry] = watching(settings, "gpt-oss-20b")
    logging.getLogger("engines.process.supervisor").error(
        "the engine died with Bearer abcdefgh12345678"
    )
    await telemetry.close()
    sent = str(collector.received("logs"))
    assert "the engine died" in sent
    assert "abcdefgh" not in sent
    assert collector.received("traces") == collector.received("metrics") == []


def _lost(runtime: Any, signal: str) -> float | None:
    found: float | None = runtime.metrics.registry.get_sample_value(
        "harmonium_telemetry_dropped_total", {"signal": signal}
    )
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_collector_that_is_gone_costs_requests_nothing(
    traced: Fixture, chat_body: Fixture, brief_end: None, protocol: str
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        settings = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "otel_exporter_otlp_endpoint": endpoint,
        }
        async with traced(**settings) as (client, runtime):
            for _ in range(5):
                assert (await client.post(PATH, json=chat_body(), headers=TRACED)).is_success
    assert _lost(runtime, "traces") is not None
    assert _lost(runtime, "logs") is not None


async def test_a_slow_collector_costs_requests_nothing(
    own_collector: Any,
    traced: Fixture,
    chat_body: Fixture,
    brief_end: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_collector.delay(SLOW_S)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(SLOW_S))
    async with traced(**settings_for(own_collector, "http/protobuf")) as (client, _):
        for _ in range(5):
            assert (await client.post(PATH, json=chat_body(), headers=TRACED)).is_success
    assert not own_collector.received("traces")  # neither they nor the end waited for it


async def test_metrics_that_take_the_whole_end_hold_up_no_other_signal(
    own_collector: Any, traced: Fixture, chat_body: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, shutdown = threading.Event(), MeterProvider.shutdown

    def shutdown_late(self: MeterProvider, *given: Any) -> None:
        may_end.wait(60)
        shutdown(self, *given)  # else its reader's thread goes on for ever

    monkeypatch.setattr(MeterProvider, "shutdown", shutdown_late)
    async with traced(**settings_for(own_collector, "http/protobuf")) as (client, runtime):
        assert (await client.post(PATH, json=chat_body(), headers=TRACED)).is_success
    assert own_collector.received("traces")
    assert own_collector.received("logs")
    may_end.set()
    await asyncio.to_thread(runtime.telemetry._closing.join, 60)


def test_a_change_of_the_collector_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class Collector:
        takes = False

        def export(self, batch: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE

    lost: list[tuple[str, int]] = []
    collector = Collector()
    counted = CountedExporter("traces", collector, lambda *told: lost.append(told))
    with caplog.at_level("INFO", "parts.otel"):
        for collector.takes in (True, False, False, True, True):
            counted.export([1, 2, 3])
    assert lost == [("traces", 3)] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
