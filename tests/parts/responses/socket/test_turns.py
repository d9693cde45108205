"""Turns over WebSocket: their events, what they continue, lanes, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engines.base import EngineRequest
from parts.responses.socket import connection
from service.harmony import vocabulary
from service.runtime import Runtime
from service.work import in_thread
from tests import plain
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.responses.socket.conftest import Client, Serve, Server

Fixture = Callable[..., Any]


def bare(event: Any) -> Any:
    """An event without what differs between two answers of the same text."""
    text = json.dumps({name: event[name] for name in event if name != "stream_id"})
    for id in {part for part in text.split('"') if part.startswith(("resp_", "rs_", "msg_"))}:
        text = text.replace(id, id.partition("_")[0])
    found = json.loads(text)
    if usage := found.get("response", {}).get("usage"):
        del usage["input_tokens_details"]  # the second finds the first in the cache
    return found


async def test_its_events_are_those_of_a_stream(
    serve: Serve, make_runtime: Fixture, hello: str, typed_events: Fixture
) -> None:
    server = await serve(make_runtime(hello))
    client = await server.open()
    events = await client.turn()
    body = {"model": "gpt-oss-20b", "input": "Hi", "store": False, "stream": True}
    async with plain.AsyncClient() as http:
        url = server.url.replace("ws:", "http:")
        streamed = await http.post(f"{url}/v1/responses", json=body)
    assert [bare(event) for event in events] == [bare(each) for each in typed_events(streamed.text)]


async def test_the_handshake_asks_for_the_times_of_all_turns(
    serve: Serve, make_runtime: Fixture, hello: str
) -> None:
    client = await (await serve(make_runtime(hello))).open(X_Include_Metrics="1")
    for _ in range(2):
        events = await client.turn()
        assert events[-1]["response"]["metrics"]["time_to_first_token_ms"] >= 0
        assert "metrics" not in events[0]["response"]


async def test_a_chain_of_responses_that_are_stored_nowhere(client: Client) -> None:
    first = (await client.turn(instructions="Be brief."))[-1]["response"]
    second = (await client.turn(previous_response_id=first["id"]))[-1]["response"]
    third = (await client.turn(previous_response_id=second["id"]))[-1]["response"]
    assert (first["store"], third["store"]) == (False, False)
    assert third["previous_response_id"] == second["id"]
    lengths = [each["usage"]["input_tokens"] for each in (first, second, third)]
    assert lengths[1] < lengths[2]
    # Whole conversations as input have prompts of the same length.
    hello = {"role": "assistant", "content": first["output"][-1]["content"][0]["text"]}
    hi = {"role": "user", "content": "Hi"}
    whole = (await client.turn(input=[hi, hello, hi, hello, hi]))[-1]["response"]
    assert whole["usage"]["input_tokens"] == lengths[2]


async def test_only_the_last_response_of_a_lane_is_held(client: Client) -> None:
    first = (await client.turn())[-1]["response"]["id"]
    await client.turn()
    error = (await client.turn(previous_response_id=first))[-1]
    assert (error["type"], error["status"]) == ("error", 400)
    assert error["error"]["code"] == "previous_response_not_found"
    assert error["error"]["param"] == "previous_response_id"
    assert (await client.turn())[-1]["type"] == "response.completed"


async def test_a_stored_response_is_continued_from_any_connection(
    serve: Serve, make_runtime: Fixture, hello: str
) -> None:
    server = await serve(make_runtime(hello))
    stored = (await (await server.open()).turn(store=True))[-1]["response"]["id"]
    other = await server.open()
    assert (await other.turn(previous_response_id=stored))[-1]["type"] == "response.completed"
    held = (await other.turn())[-1]["response"]["id"]
    missing = (await (await server.open()).turn(previous_response_id=held))[-1]
    assert missing["error"]["code"] == "previous_response_not_found"


async def test_a_continuation_that_fails_lets_go_of_its_parent(client: Client) -> None:
    parent = (await client.turn())[-1]["response"]["id"]
    failed = (await client.turn(previous_response_id=parent, temperature=9))[-1]
    assert failed["error"]["param"] == "temperature"
    again = (await client.turn(previous_response_id=parent))[-1]
    assert again["error"]["code"] == "previous_response_not_found"


async def test_a_long_text_is_encoded_once_for_a_connection(
    serve: Serve, make_runtime: Fixture, hello: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next turn knows the ids; another connection must not, since it could measure that."""
    encoded: list[str] = []
    encode = vocabulary._encode

    def counted(text: str) -> list[int]:
        encoded.append(text)
        return encode(text)

    monkeypatch.setattr(vocabulary, "_encode", counted)
    long = "The tide is high at noon. " * 1000
    server = await serve(make_runtime(hello))
    client, other = await server.open(), await server.open()

    def num_encoded() -> int:
        found = sum(text.count("tide") for text in encoded)
        encoded.clear()
        return found

    first = (await client.turn(input=long))[-1]["response"]
    assert num_encoded() == 1000
    await client.turn(input="And then?", previous_response_id=first["id"])
    assert num_encoded() == 0
    again = (await client.turn(input=long))[-1]["response"]
    assert num_encoded() == 0
    assert again["usage"]["input_tokens"] == first["usage"]["input_tokens"]
    await other.turn(input=long)
    assert num_encoded() == 1000
    await other.turn(input=long, cache_salt="one of several")
    assert num_encoded() == 1000


@pytest.mark.parametrize(
    "wish", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}], ids=str
)
async def test_a_prompt_is_prepared_and_then_continued(client: Client, wish: Any) -> None:
    events = await client.turn(instructions="Be brief.", **wish)
    assert [event["type"] for event in events] == ["response.created", "response.completed"]
    prepared = events[-1]["response"]
    assert (prepared["status"], prepared["output"]) == ("completed", [])
    assert prepared["usage"]["output_tokens"] == 0
    assert prepared["usage"]["input_tokens"] == prepared["usage"]["total_tokens"] > 0
    answered = (
        await client.turn(previous_response_id=prepared["id"], input="Ho", instructions="Be brief.")
    )[-1]["response"]
    assert answered["output"][-1]["content"][0]["text"].startswith("Grüße")
    # Nearly all of what was prepared is found in the cache.
    cached = answered["usage"]["input_tokens_details"]["cached_tokens"]
    assert prepared["usage"]["input_tokens"] - cached < 32


@pytest.fixture
def slow(make_runtime: Fixture, harmony_ids: Fixture) -> Runtime:
    """A service whose answers to `slow` never end, and to all else at once."""
    endless = harmony_ids("<|channel|>final<|message|>on and on ")
    brief = harmony_ids("<|channel|>final<|message|>Done.<|return|>")
    word = harmony_ids("slow")[0]

    def script(request: EngineRequest) -> Sequence[int]:
        chosen: Sequence[int] = endless if word in request.prompt_token_ids else brief
        return chosen

    engine = FakeEngine(FakeOptions(step_s=0.002), script)
    runtime: Runtime = make_runtime(engine=engine)
    return runtime


async def test_lanes_run_side_by_side_and_each_in_order(serve: Serve, slow: Runtime) -> None:
    client = await (await serve(slow)).open()
    await client.create(input="slow", stream_id="a")
    await client.create(input="never begun", stream_id="a")
    await client.create(input="fast", stream_id="b")
    seen: list[Any] = []
    while not seen or (seen[-1]["type"], seen[-1]["stream_id"]) != ("response.completed", "b"):
        seen.append(await client.event())
    created = [each["stream_id"] for each in seen if each["type"] == "response.created"]
    assert sorted(created) == ["a", "b"]


async def test_turns_that_are_sent_at_once_are_queued(client: Client) -> None:
    for number in range(connection.MOST_QUEUED + 10):
        await client.create(metadata={"number": str(number)})
    numbers = []
    for _ in range(connection.MOST_QUEUED + 10):
        numbers.append((await client.rest())[-1]["response"]["metadata"]["number"])
    assert numbers == [str(number) for number in range(connection.MOST_QUEUED + 10)]


async def test_a_lane_more_than_there_may_be_is_refused(serve: Serve, slow: Runtime) -> None:
    client = await (await serve(slow)).open()
    for number in range(connection.MOST_LANES + 1):
        await client.create(input="slow", stream_id=str(number))
    while (event := await client.event())["type"] != "error":
        pass
    assert (event["status"], event["error"]["code"]) == (429, "too_many_lanes")
    assert event["stream_id"] == str(connection.MOST_LANES)


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"background": True}, "unsupported_parameter", "background"),
        ({"stream": False}, "unsupported_parameter", "stream"),
        ({"stream_options": {}}, "unsupported_parameter", "stream_options"),
        ({"generate": "no"}, "unsupported_parameter", "generate"),
        ({"stream_id": "x" * 65}, "invalid_value", "stream_id"),
        ({"stream_id": ""}, "invalid_value", "stream_id"),
        ({"type": "response.cancel"}, "unknown_event", "type"),
        ({"model": 1}, "invalid_value", "model"),
        ({"model": "other"}, "model_not_found", "model"),
        ({"nonsense": 1}, "unknown_parameter", "nonsense"),
        ({"tools": 1}, "invalid_value", "tools"),
    ],
)
async def test_what_is_refused_leaves_the_connection_open(
    client: Client, event: Any, code: str, param: str
) -> None:
    error = (await client.turn(**event))[-1]
    assert error["error"]["code"] == code
    assert error["error"]["param"] == param
    assert error["status"] in (400, 404)
    assert (await client.turn(stream=True, background=False))[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    "message", ["", "{", "[]", "1", '"response.create"', "null", '{"type": 3}', "[" * 100_000]
)
async def test_what_is_no_event_is_refused(client: Client, message: str) -> None:
    await client.connection.send(message)
    error = await client.event()
    assert (error["type"], error["status"]) == ("error", 400)
    assert error["error"]["code"] in ("invalid_json", "unknown_event")
    assert (await client.turn())[-1]["type"] == "response.completed"


async def test_steering_is_refused_with_its_own_event(client: Client) -> None:
    await client.send(type="response.steer", previous_response_id="resp_1", input=[{"a": 1}])
    event = await client.event()
    assert event["type"] == "response.steer.failed"
    assert event["error"]["code"] == "steering_not_supported"
    assert event["steer"]["input"] == [{"a": 1}]
    assert event["steer"]["previous_response_id"] == "resp_1"


async def test_a_failure_in_the_middle_is_told_as_in_a_stream(
    serve: Serve, make_runtime: Fixture, hello: str
) -> None:
    client = await (await serve(make_runtime(hello, fail_at=9))).open()
    await client.create(stream_id="a")
    events = await client.rest()
    assert events[-1]["error"]["code"] == "server_error" == events[-1]["code"]
    assert (events[-1]["status"], events[-1]["stream_id"]) == (500, "a")
    failed = await client.event()
    assert failed["type"] == "response.failed"
    assert failed["sequence_number"] == events[-1]["sequence_number"] + 1


async def test_a_client_that_leaves_ends_its_turns(serve: Serve, slow: Runtime) -> None:
    client = await (await serve(slow)).open()
    await client.create(input="slow", stream_id="a")
    await client.create(input="slow", stream_id="b")
    while (await slow.engine.stats()).num_running < 2:
        await client.event()
    await client.connection.close()
    async with asyncio.timeout(60):
        while (await slow.engine.stats()).num_running:
            await asyncio.sleep(0.005)
    assert slow.lifecycle.num_running == 0


async def test_the_header_for_other_names_of_events_holds_for_all_turns(
    serve: Serve, make_runtime: Fixture, hello: str
) -> None:
    client = await (await serve(make_runtime(hello))).open(OpenResponses_Version="latest")
    for _ in range(2):
        assert "response.reasoning.delta" in {event["type"] for event in await client.turn()}


@pytest.fixture
def brief_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.Connections, "max_age_s", 0.05)


@pytest.mark.usefixtures("brief_life")
async def test_after_its_time_a_connection_is_ended(client: Client) -> None:
    error = await client.event()
    assert (error["type"], error["status"]) == ("error", 400)
    assert error["error"]["code"] == "websocket_connection_limit_reached"
    assert await client.close_code() == 1000


async def test_a_server_that_stops_ends_the_turn_and_then_the_connection(
    serve: Serve, make_runtime: Fixture, hello: str
) -> None:
    runtime = make_runtime(hello, step_s=0.02)
    server = await serve(runtime)
    client, idle = await server.open(), await server.open()
    await client.create(metadata={"n": "running"})
    await client.create(metadata={"n": "waiting"})
    assert (await client.event())["type"] == "response.created"
    draining = asyncio.create_task(runtime.lifecycle.drain(60))
    events = await client.rest()
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["metadata"] == {"n": "running"}
    assert await client.close_code() == 1001
    assert await idle.close_code() == 1001
    assert await draining
    with pytest.raises(Exception, match="503"):
        await server.open()


async def test_each_turn_is_a_request_of_its_own(
    serve: Serve, make_runtime: Fixture, hello: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "harmonium.access")
    runtime = make_runtime(hello)
    server = await serve(runtime)
    client = await server.open(X_Request_Id="mine")
    response = client.connection.response
    assert response is not None
    assert response.headers["X-Request-Id"] == "mine"
    await client.turn()
    error = (await client.turn(temperature=9))[-1]
    assert error["error"]["headers"]["x-request-id"] == "mine.2"
    await client.connection.close()
    lines: list[str] = []
    async with asyncio.timeout(60):
        while len(lines) < 3:
            lines = [record.getMessage() for record in caplog.records]
            await asyncio.sleep(0.005)
    assert "POST /v1/responses -> 200" in lines[0]
    assert "request mine.1" in lines[0]
    assert "-> 400 (invalid_value)" in lines[1]
    assert "GET /v1/responses -> 101" in lines[2]
    page = (await runtime.metrics.render(runtime.engine)).decode()
    counted = [line for line in page.splitlines() if "http_requests_total{" in line]
    by_status = {line.partition('status="')[2][:3]: line.split()[-1] for line in counted}
    assert by_status == {"101": "1.0", "200": "1.0", "400": "1.0"}


async def test_a_message_of_many_small_things_is_bounded_like_a_body(client: Client) -> None:
    values = await in_thread(lambda: json.dumps([0] * 300_000))
    await client.connection.send('{"type":"response.create","metadata":' + values + "}")
    error = await client.event()
    assert (error["status"], error["error"]["code"]) == (413, "body_too_complex")


async def test_a_message_larger_than_a_body_ends_the_connection(
    serve: Serve, make_runtime: Fixture, hello: str
) -> None:
    server: Server = await serve(make_runtime(hello, max_body_bytes=5000))
    client = await server.open()
    await client.create(input="a" * 6000)
    assert await client.close_code() == 1009
