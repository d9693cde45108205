"""POST /v1/messages: the answer's blocks, its end and usage, and the events of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from auth.authenticators import ApiKeys
from parts.messages.response_schema import Message
from service.http.failures import MessageError
from service.run.server import create_app
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/messages"
THOUGHT = '<|channel|>analysis<|message|>A "thought" 🪿.<|end|><|start|>assistant'
HELLO = THOUGHT + "<|channel|>final<|message|>Grüße, 👩‍🚀!\n<|return|>"
CALL = (
    THOUGHT
    + "<|channel|>commentary<|message|>Looking it up.<|end|><|start|>assistant"
    + "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    + '{"a": "é", "b": [1.0]}<|call|>'
)
TOOL = {"name": "f", "description": "Looks up.", "input_schema": {"type": "object"}}
THINK = {"type": "adaptive"}


def collected(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together, in strict order of the events."""
    assert [e["type"] for e in events[:2]] == ["message_start", "ping"]
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == []
    open_index: int | None = None
    texts: list[str] = []
    fields = {
        "text_delta": "text",
        "thinking_delta": "thinking",
        "signature_delta": "signature",
        "input_json_delta": "partial_json",
    }
    for event in events[2:-2]:
        if event["type"] == "content_block_start":
            assert open_index is None
            assert event["index"] == len(message["content"])
            open_index, texts = event["index"], []
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_index
            if message["content"][-1]["type"] == "tool_use":
                message["content"][-1]["input"] = json.loads("".join(texts) or "{}")
            open_index = None
        else:
            assert event["type"] == "content_block_delta"
            assert event["index"] == open_index
            field = fields[event["delta"]["type"]]
            if field == "partial_json":
                texts.append(event["delta"][field])
            else:
                message["content"][-1][field] += event["delta"][field]
    assert open_index is None
    message |= events[-2]["delta"] | {"usage": events[-2]["usage"]}
    return message


async def test_an_answer_has_thinking_text_and_call_in_blocks(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture
) -> None:
    client = await make_client(make_runtime(CALL))
    response = await client.post(PATH, json=message_body(tools=[TOOL], thinking=THINK))
    answer = response.json()
    thinking, text, call = answer["content"]
    assert thinking["type"] == "thinking"
    assert thinking["thinking"] == 'A "thought" 🪿.'
    assert thinking["signature"]
    assert text == {"type": "text", "text": "Looking it up.", "citations": []}
    assert call["id"].startswith("toolu_")
    assert (call["name"], call["input"]) == ("f", {"a": "é", "b": [1.0]})
    assert '"input":{"a": "é", "b": [1.0]}' in response.text  # the model's own characters
    assert answer["stop_reason"] == "tool_use"
    assert answer["id"].startswith("msg_")
    Message.model_validate(answer)


@pytest.mark.parametrize(
    ("changes", "is_shown"),
    [
        ({}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 500, "display": "summarized"}}, True),
    ],
)
async def test_thinking_is_shown_to_those_who_ask_and_always_counted(
    make_runtime: Fixture,
    make_client: Fixture,
    message_body: Fixture,
    changes: dict[str, Any],
    is_shown: bool,
) -> None:
    client = await make_client(make_runtime(HELLO))
    answer = (await client.post(PATH, json=message_body(**changes))).json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"][not is_shown :]
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] > 0


async def test_omitted_thoughts_come_back_by_their_signature(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture
) -> None:
    """Claude Code's default; a tool loop goes on with the thoughts that nobody was shown."""
    client = await make_client(make_runtime(CALL))
    body = message_body(tools=[TOOL], thinking={"type": "adaptive", "display": "omitted"})
    whole = (await client.post(PATH, json=body)).json()
    streamed = (await client.post(PATH, json=body | {"stream": True})).text
    assert "thinking_delta" not in streamed
    assert whole["content"][0]["signature"] in streamed
    assert whole["content"][0]["thinking"] == ""
    turns = [
        *body["messages"],
        {"role": "assistant", "content": whole["content"]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": whole["content"][2]["id"]}],
        },
    ]
    counts = []
    shown = whole["content"][0] | {"thinking": 'A "thought" 🪿.', "signature": ""}
    wrong = shown | {"thinking": "", "signature": "thoughts:!"}
    for thought in (shown, whole["content"][0], wrong):
        turns[-2]["content"] = [thought, *whole["content"][1:]]
        counted = {"model": "gpt-oss-20b", "messages": turns}
        response = await client.post(f"{PATH}/count_tokens", json=counted)
        counts.append(response.json()["input_tokens"])
    assert counts[0] == counts[1] > counts[2]


@pytest.mark.parametrize("step", [1, 3, 8, 100])
@pytest.mark.parametrize(
    ("script", "changes"),
    [
        (HELLO, {"thinking": THINK}),
        (HELLO, {"thinking": THINK | {"display": "omitted"}}),
        (HELLO, {"stop_sequences": ["🚀", "never"]}),
        (HELLO, {"max_tokens": 9, "thinking": THINK}),
        (CALL, {"tools": [TOOL], "thinking": THINK}),
        (CALL + "<|start|>assistant" + CALL, {"tools": [TOOL]}),
        ("no header at all<|return|>", {}),
        ("<|channel|>final<|message|><|return|>", {}),
        ("<|channel|>commentary to=functions.f<|message|><|call|>", {"tools": [TOOL]}),
    ],
)
async def test_a_streamed_answer_adds_up_to_the_whole_one(
    make_runtime: Fixture,
    make_client: Fixture,
    message_body: Fixture,
    typed_events: Fixture,
    step: int,
    script: str,
    changes: dict[str, Any],
) -> None:
    client = await make_client(make_runtime(script, tokens_per_step=step))
    whole = (await client.post(PATH, json=message_body(**changes))).json()
    response = await client.post(PATH, json=message_body(stream=True, **changes))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    streamed = collected(typed_events(response.text))
    for message in (whole, streamed):
        del message["id"]
        usage = message["usage"]  # the second finds the first's prompt cached
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")
        for block in message["content"]:
            block.pop("id", None)
    assert streamed == whole


@pytest.mark.parametrize(
    ("script", "changes", "reason", "stop"),
    [
        (HELLO, {}, "end_turn", None),
        (HELLO, {"max_tokens": 5}, "max_tokens", None),
        (HELLO, {"stop_sequences": ["thought"]}, "end_turn", None),  # vllm#52599: visible text only
        (HELLO, {"stop_sequences": ["x", "ße"]}, "stop_sequence", "ße"),
        (CALL, {"tools": [TOOL]}, "tool_use", None),
        (CALL, {"tools": [TOOL], "stop_sequences": ["up"]}, "stop_sequence", "up"),
        ("on ", {"max_tokens": 5000}, "model_context_window_exceeded", None),
    ],
)
async def test_the_stop_reason_says_why(
    make_runtime: Fixture,
    make_client: Fixture,
    message_body: Fixture,
    script: str,
    changes: dict[str, Any],
    reason: str,
    stop: str | None,
) -> None:
    client = await make_client(make_runtime(script, max_model_len=1200))
    answer = (await client.post(PATH, json=message_body(**changes))).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, stop)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a": {"b": 12', {"a": {"b": 12}}),
        ('{"a": "cut he', {}),
        ("", {}),
        ("not JSON", {"__unparsed__": "not JSON"}),
        ("[1]", {"__unparsed__": "[1]"}),
        ('{"a": NaN}', {"__unparsed__": '{"a": NaN}'}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"a": 1}\n', {"a": 1}),
    ],
)
async def test_an_input_is_always_an_object_and_nothing_is_lost(
    make_runtime: Fixture,
    make_client: Fixture,
    message_body: Fixture,
    harmony_ids: Fixture,
    written: str,
    read: dict[str, Any],
) -> None:
    """A cut-off call is returned, not left out (lmstudio-bug-tracker#942, ollama#11704)."""
    script = "<|channel|>commentary to=functions.f<|message|>" + written
    client = await make_client(make_runtime(script))
    body = message_body(tools=[TOOL], max_tokens=len(harmony_ids(script)))
    answer = (await client.post(PATH, json=body)).json()
    assert answer["content"][0]["input"] == read


async def test_usage_is_that_of_the_chat_route(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture, chat_body: Fixture
) -> None:
    runtime = make_runtime(HELLO, HELLO, HELLO)
    client = await make_client(runtime)
    chat = (await client.post("/v1/chat/completions", json=chat_body())).json()["usage"]
    mine = (await client.post(PATH, json=message_body())).json()["usage"]
    counted = (await client.post(f"{PATH}/count_tokens", json=counting(message_body()))).json()
    prompt = mine["input_tokens"] + mine["cache_read_input_tokens"]
    assert mine["cache_read_input_tokens"] > 0
    assert prompt == chat["prompt_tokens"] == counted["input_tokens"]
    assert mine["output_tokens"] == chat["completion_tokens"]
    details = chat["completion_tokens_details"]
    assert mine["output_tokens_details"]["thinking_tokens"] == details["reasoning_tokens"]


def counting(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != "max_tokens"}


async def test_one_call_is_enough_when_parallel_use_is_disabled(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture
) -> None:
    calls = CALL.replace("<|call|>", "<|end|>") + "<|start|>assistant" + CALL
    client = await make_client(make_runtime(calls))
    for choice, num_calls in ((None, 2), ({"type": "auto", "disable_parallel_tool_use": True}, 1)):
        body = message_body(tools=[TOOL], tool_choice=choice)
        answer = (await client.post(PATH, json=body)).json()
        assert [b["type"] for b in answer["content"]].count("tool_use") == num_calls


async def test_errors_have_anthropics_shape(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture
) -> None:
    runtime = make_runtime(HELLO, authenticator=ApiKeys(["secret"]), max_body_bytes=2000)
    client = await make_client(runtime)
    key = {"x-api-key": "secret", "anthropic-version": "2023-06-01", "anthropic-beta": "some"}
    attempts = [
        (message_body(), {}, 401, "authentication_error"),
        (message_body(), {"x-api-key": "wrong"}, 401, "authentication_error"),
        (message_body(), key, 200, None),
        (message_body(), {"authorization": "Bearer secret"}, 200, None),
        (message_body(model="other"), key, 404, "not_found_error"),
        (message_body(messages="x"), key, 400, "invalid_request_error"),
        ({}, key, 400, "invalid_request_error"),
        (message_body(system="x" * 3000), key, 413, "request_too_large"),
        (message_body(), {**key, "x-request-id": "bad id"}, 400, "invalid_request_error"),
    ]
    for body, headers, status, kind in attempts:
        response = await client.post(PATH, json=body, headers=headers)
        assert response.status_code == status, response.text
        if kind is not None:
            assert MessageError.model_validate(response.json()).error.type == kind
    assert (await client.get(PATH, headers=key)).json()["type"] == "error"


@pytest.mark.parametrize(
    ("options", "status", "kind"),
    [
        ({"fail_at": 0}, 500, "api_error"),
        ({"max_num_seqs": 1, "max_num_waiting": 1}, 200, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_event_is_an_ordinary_one(
    make_runtime: Fixture,
    make_client: Fixture,
    message_body: Fixture,
    options: dict[str, Any],
    status: int,
    kind: str | None,
    stream: bool,
) -> None:
    client = await make_client(make_runtime(HELLO, **options))
    response = await client.post(PATH, json=message_body(stream=stream))
    assert response.status_code == status
    if kind is not None:
        assert response.json()["error"]["type"] == kind


async def test_a_draining_server_is_overloaded(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture
) -> None:
    runtime = make_runtime(HELLO)
    client = await make_client(runtime)
    await runtime.lifecycle.drain(0)
    response = await client.post(PATH, json=message_body())
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "overloaded_error"


async def test_an_error_in_mid_stream_is_an_event(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture, typed_events: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO, fail_at=6))
    response = await client.post(PATH, json=message_body(stream=True, thinking=THINK))
    assert response.status_code == 200
    last = typed_events(response.text)[-1]
    assert MessageError.model_validate(last).error.type == "api_error"


class Exchange:
    """One request over ASGI whose client can leave."""

    def __init__(self, app: Any, body: dict[str, Any]) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.left = asyncio.Event()
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode()}]
        scope = {"type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode()}
        scope |= {"query_string": b"", "headers": [(b"content-type", b"application/json")]}
        self.task = asyncio.create_task(app(scope, self._receive, self.sent.put))

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def next_body(self) -> bytes:
        while True:
            message = await asyncio.wait_for(self.sent.get(), 60)
            if message["type"] == "http.response.body":
                return bytes(message["body"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_sequence(
    make_runtime: Fixture, message_body: Fixture, stream: bool
) -> None:
    engine = FakeEngine(FakeOptions(script=(200005, 17196, 200008, 24912), step_s=0.001))
    await engine.start()
    exchange = Exchange(
        create_app(make_runtime(engine=engine)), message_body(stream=stream, max_tokens=100_000)
    )
    async with asyncio.timeout(60):
        while not (await engine.stats()).num_running:
            await asyncio.sleep(0)
        exchange.left.set()
        await exchange.task
    assert (await engine.stats()).num_running == 0
    await engine.stop()


async def test_silence_is_broken_by_pings(make_runtime: Fixture, message_body: Fixture) -> None:
    engine = FakeEngine(FakeOptions(script=(1,), step_s=3600))
    await engine.start()
    runtime = make_runtime(engine=engine, sse_keepalive_s=0.01)
    exchange = Exchange(create_app(runtime), message_body(stream=True))
    bodies = [await exchange.next_body() for _ in range(4)]
    assert bodies[0].startswith(b"event: message_start\n")
    assert bodies[-1] == b'event: ping\ndata: {"type":"ping"}\n\n'
    exchange.left.set()
    await asyncio.wait_for(exchange.task, 60)
    await engine.stop()
