"""POST /v1/chat/completions, streamed: the bytes on the wire, and what interrupts them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from service.run.server import create_app
from service.runtime import Runtime
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

THOUGHT = '<|channel|>analysis<|message|>A short "thought".<|end|><|start|>assistant'
HELLO = THOUGHT + "<|channel|>final<|message|>Grüße, 👩‍🚀!\n<|return|>"
CALL = THOUGHT + (
    "<|channel|>commentary<|message|>Looking it up.<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "é", "b": [1]}<|call|>'
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PATH = "/v1/chat/completions"


def collected(events: list[Any]) -> dict[str, Any]:
    """The message that a client puts together from one choice's chunks."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": [], "logprobs": []}
    for event in events[:-1]:
        if not event["choices"]:
            message["usage"] = event["usage"]
            continue
        choice = event["choices"][0]
        delta = choice["delta"]
        message["content"] += delta.get("content", "")
        message["reasoning"] += delta.get("reasoning", "")
        message["finish_reason"] = choice["finish_reason"]
        message["logprobs"] += (choice["logprobs"] or {}).get("content", [])
        for call in delta.get("tool_calls", []):
            if "id" in call:
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message


@pytest.mark.parametrize(
    ("name", "script", "changes"),
    [
        ("sse_chat.txt", HELLO, {}),
        ("sse_usage.txt", HELLO, {"stream_options": {"include_usage": True}}),
        ("sse_tool_call.txt", CALL, {"tools": [TOOL]}),
        ("sse_logprobs.txt", HELLO, {"logprobs": True, "top_logprobs": 1}),
        ("sse_length.txt", HELLO, {"max_completion_tokens": 6}),
    ],
)
async def test_the_bytes_are_as_recorded(
    make_runtime: Fixture,
    make_client: Fixture,
    chat_body: Fixture,
    compare: Fixture,
    name: str,
    script: str,
    changes: dict[str, Any],
) -> None:
    client = await make_client(make_runtime(script))
    response = await client.post(PATH, json=chat_body(stream=True, **changes))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    compare(name, response.text)


async def test_an_error_in_mid_stream_is_an_event_and_the_stream_still_ends(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, compare: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO, fail_at=5))
    response = await client.post(PATH, json=chat_body(stream=True))
    assert response.status_code == 200
    compare("sse_error.txt", response.text)


@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize(
    ("script", "changes"),
    [
        (HELLO, {"logprobs": True, "top_logprobs": 2}),
        (HELLO, {"stop": ["🚀", "never"]}),
        (HELLO, {"stop": "e, ", "logprobs": True}),
        (HELLO, {"max_completion_tokens": 9}),
        (CALL, {"tools": [TOOL]}),
        (CALL, {"tools": [TOOL], "parallel_tool_calls": False, "stop": "up"}),
        ("<|channel|>final<|message|>no end", {"max_completion_tokens": 7}),
        ("no header at all<|return|>", {}),
    ],
)
async def test_a_streamed_answer_adds_up_to_the_whole_one(
    make_runtime: Fixture,
    make_client: Fixture,
    chat_body: Fixture,
    events: Fixture,
    step: int,
    script: str,
    changes: dict[str, Any],
) -> None:
    client = await make_client(make_runtime(script, tokens_per_step=step))
    whole = (await client.post(PATH, json=chat_body(**changes))).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = await client.post(PATH, json=chat_body(**changes, **options))
    got, choice = collected(events(streamed.text)), whole["choices"][0]
    assert got["content"] == (choice["message"]["content"] or "")
    assert got["reasoning"] == (choice["message"]["reasoning"] or "")
    calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    assert got["tool_calls"] == calls
    assert got["finish_reason"] == choice["finish_reason"]
    assert got["logprobs"] == (choice["logprobs"] or {"content": []})["content"]
    for usage in (got["usage"], whole["usage"]):
        del usage["prompt_tokens_details"]  # the second finds the first's prompt cached
    assert got["usage"] == whole["usage"]


@pytest.mark.parametrize("step", [1, 3, 64])
async def test_streamed_token_ids_are_those_of_the_whole_answer(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture, step: int
) -> None:
    """As vLLM streams them: the prompt's in the first chunk, the answer's piece by piece."""
    client = await make_client(make_runtime(HELLO, HELLO, tokens_per_step=step))
    body = chat_body(return_token_ids=True, n=2)
    whole = (await client.post(PATH, json=body)).json()
    chunks = events((await client.post(PATH, json=body | {"stream": True})).text)[:-1]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    told: dict[int, list[int]] = {0: [], 1: []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        told[choice["index"]] += choice.get("token_ids", [])
    assert list(told.values()) == [choice["token_ids"] for choice in whole["choices"]]


async def test_choices_interleave_and_each_one_ends(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO, CALL))
    body = chat_body(n=3, stream=True, tools=[TOOL])
    chunks = events((await client.post(PATH, json=body)).text)[:-1]
    by_choice = {index: [] for index in range(3)}  # type: dict[int, list[Any]]
    for chunk in chunks:
        by_choice[chunk["choices"][0]["index"]].append(chunk["choices"][0])
    for choices in by_choice.values():
        assert choices[0]["delta"]["role"] == "assistant"
        assert [c["finish_reason"] for c in choices].count(None) == len(choices) - 1
    assert {c[-1]["finish_reason"] for c in by_choice.values()} == {"stop", "tool_calls"}


async def test_an_error_before_the_first_event_is_an_ordinary_error(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO, fail_at=0))
    response = await client.post(PATH, json=chat_body(stream=True))
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "request_failed"


async def test_one_failing_choice_ends_the_stream_once(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture
) -> None:
    client = await make_client(make_runtime(HELLO, fail_at=5))
    sent = events((await client.post(PATH, json=chat_body(stream=True, n=2))).text)
    assert ["error" in event for event in sent].count(True) == 1
    assert sent[-1] == "[DONE]"


class Connection:
    """One ASGI exchange whose client can leave; says what was sent and when it is over."""

    def __init__(self, runtime: Runtime, body: dict[str, Any]) -> None:
        self.sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._left = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        scope = {
            "type": "http",
            "method": "POST",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "app": None,
        }
        app = create_app(runtime)
        self.task = asyncio.create_task(app(scope, self._receive, self.sent.put))

    def leave(self) -> None:
        self._left.set()

    async def next_body(self) -> bytes:
        while True:
            message = await asyncio.wait_for(self.sent.get(), 60)
            if message["type"] == "http.response.body":
                return bytes(message["body"])

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}


async def wait_until_running(engine: FakeEngine, num_running: int) -> None:
    async with asyncio.timeout(60):
        while (await engine.stats()).num_running != num_running:
            await asyncio.sleep(0)


@pytest.fixture
async def endless(make_runtime: Fixture) -> Any:
    """A runtime whose engine never comes to an end by itself."""
    engine = FakeEngine(FakeOptions(script=(200005, 17196, 200008, 24912), step_s=0.001))
    await engine.start()
    yield make_runtime(engine=engine)
    await engine.stop()


@pytest.mark.parametrize("changes", [{"stream": True}, {"stream": False}, {"n": 3}])
async def test_a_client_that_leaves_frees_its_sequences(
    endless: Runtime, chat_body: Fixture, changes: dict[str, Any]
) -> None:
    connection = Connection(endless, chat_body(**changes))
    assert isinstance(endless.engine, FakeEngine)
    await wait_until_running(endless.engine, changes.get("n", 1))
    connection.leave()
    await asyncio.wait_for(connection.task, 60)
    assert (await endless.engine.stats()).num_running == 0
    assert endless.lifecycle.num_running == 0
    metrics = (await endless.metrics.render(endless.engine)).decode()
    lines = [line for line in metrics.splitlines() if line.startswith("harmonium_requests_total{")]
    (aborted,) = [line for line in lines if 'outcome="abort"' in line]
    assert aborted.endswith(" 1.0")
    row = f'{{result="excluded",route="{PATH}"}}'
    (excluded,) = [line for line in metrics.splitlines() if row in line]
    assert excluded.endswith(" 1.0")


async def test_silence_is_broken_by_comments(make_runtime: Fixture, chat_body: Fixture) -> None:
    engine = FakeEngine(FakeOptions(script=(1,), step_s=3600))
    await engine.start()
    runtime = make_runtime(engine=engine, sse_keepalive_s=0.01)
    # One step happens at once; the next one is an hour away.
    connection = Connection(runtime, chat_body(stream=True))
    bodies = [await connection.next_body() for _ in range(4)]
    assert b'"role":"assistant"' in bodies[0]
    assert bodies[-1] == b": keep-alive\n\n"
    connection.leave()
    await asyncio.wait_for(connection.task, 60)
    await engine.stop()


async def test_a_busy_stream_has_no_comments(endless: Runtime, chat_body: Fixture) -> None:
    connection = Connection(endless, chat_body(stream=True))
    bodies = [await connection.next_body() for _ in range(50)]
    assert not any(body.startswith(b":") for body in bodies)
    connection.leave()
    await asyncio.wait_for(connection.task, 60)


async def test_an_engine_that_stops_ends_open_streams_with_an_error(
    endless: Runtime, chat_body: Fixture
) -> None:
    connection = Connection(endless, chat_body(stream=True))
    await connection.next_body()
    await endless.engine.stop()
    await asyncio.wait_for(connection.task, 60)
    last = b""
    while not connection.sent.empty():
        last = await connection.next_body()
    error, done = last.split(b"\n\n")[:2]
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_dead"
    assert done == b"data: [DONE]"
