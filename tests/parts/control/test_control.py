"""A running chat completion is told to end its reasoning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from auth.base import Credentials, Principal
from engines.base import Capabilities, EngineRequest
from service.harmony import format as harmony
from service.harmony.format import end_of_reasoning
from service.runtime import Runtime
from service.tools import ToolResult
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.control.thinker import FINAL, THOUGHTS, TURN, write

Fixture = Callable[..., Any]

CHAT = "/v1/chat/completions"
ID = f"chatcmpl-{1:032x}"  # of every answer here
END = {"action": "reasoning_end"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
WITH_IDS = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}


class Model:
    """A scripted engine that keeps what it was asked."""

    def __init__(self, answer: Callable[[EngineRequest], Sequence[int]], **options: Any) -> None:
        self.asked: list[EngineRequest] = []
        self._answer = answer
        self.engine = FakeEngine(FakeOptions(script=(1,), **options), self._write)

    def _write(self, request: EngineRequest) -> Sequence[int]:
        self.asked.append(request)
        return self._answer(request)


def thinks(request: EngineRequest) -> Sequence[int]:
    return write(request.prompt_token_ids)


async def told(client: httpx2.AsyncClient, id: str = ID, **headers: str) -> httpx2.Response:
    await asyncio.sleep(0)  # a request within this process need not wait for anything
    return await client.post(f"{CHAT}/{id}/control", json=END, headers=headers)


async def until_told(
    client: httpx2.AsyncClient, streaming: asyncio.Task[Any], model: Model
) -> httpx2.Response:
    """Tell the answer once it reasons."""
    while (await model.engine.stats()).generated_tokens < 5:
        await asyncio.sleep(0)
    while (answer := await told(client)).status_code == 404:
        assert not streaming.done()
    return answer


def collected(chunks: list[Any]) -> dict[str, Any]:
    """What a client puts together from the chunks of one choice."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "ids": [], "calls": []}
    for chunk in chunks[:-1]:
        found["prompt"] = chunk.get("prompt_token_ids", found.get("prompt"))
        found["usage"] = chunk.get("usage") or found.get("usage")
        for choice in chunk["choices"]:
            delta = choice["delta"]
            found["content"] += delta.get("content", "")
            found["reasoning"] += delta.get("reasoning", "")
            found["calls"] += [
                c["function"]["name"] for c in delta.get("tool_calls", []) if "id" in c
            ]
            found["ids"] += choice.get("token_ids", [])
            found["finish"] = choice["finish_reason"] or found.get("finish")
    return found


@pytest.fixture
def runtime_of(make_runtime: Fixture) -> Fixture:
    """A runtime whose answers have one id."""

    def make(model: Model, **options: Any) -> Runtime:
        runtime: Runtime = make_runtime(engine=model.engine, **options)
        return replace(runtime, new_id=lambda: f"{1:032x}")

    return make


@pytest.fixture
def ended(
    runtime_of: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture
) -> Fixture:
    """An answer whose reasoning was ended while it ran."""

    async def run(model: Model, toolbox: Any = None, **fields: Any) -> dict[str, Any]:
        runtime = replace(runtime_of(model), toolbox=toolbox)
        client = await make_client(runtime)
        body = chat_body(**WITH_IDS, **fields)
        streaming = asyncio.ensure_future(client.post(CHAT, json=body))
        answer = await until_told(client, streaming, model)
        assert answer.json() == {
            "id": ID,
            "object": "chat.completion.control",
            "action": "reasoning_end",
            "success": True,
        }
        return collected(events((await streaming).text))

    return run


@pytest.mark.parametrize("step", [1, 4])
async def test_the_reasoning_ends_and_the_answer_follows(ended: Fixture, step: int) -> None:
    model = Model(thinks, tokens_per_step=step)
    found = await ended(model, max_tokens=100_000, logprobs=True)
    assert found["content"] == "Hello!"
    assert found["reasoning"]
    assert ("hm " * 20_000).startswith(found["reasoning"])
    assert found["finish"] == "stop"
    first, second = model.asked
    # The next run continues behind all that was written, and the client sees every token of it.
    written = [*found["prompt"], *found["ids"]]
    assert written[: len(second.prompt_token_ids)] == [*second.prompt_token_ids]
    assert [*second.prompt_token_ids[-6:]] == [*TURN, *FINAL]
    assert second.prompt_token_ids[: len(first.prompt_token_ids)] == first.prompt_token_ids
    num_written = len(second.prompt_token_ids) - len(first.prompt_token_ids)
    assert second.sampling.max_tokens == 100_000 - num_written
    usage = found["usage"]
    assert usage["completion_tokens"] == len(found["ids"])
    assert usage["prompt_tokens"] == len(first.prompt_token_ids)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0  # the second run's are not counted
    assert usage["completion_tokens_details"]["reasoning_tokens"] == num_written - 3 - 6


@pytest.mark.parametrize("has_grammar", [True, False])
async def test_tools_may_still_be_called(
    ended: Fixture, harmony_ids: Fixture, has_grammar: bool
) -> None:
    """Where the engine has no grammars, text must follow: the model might reason again."""

    def write(request: EngineRequest) -> Sequence[int]:
        is_told = len(model.asked) > 1 and has_grammar
        return harmony_ids(CALL) if is_told else thinks(request)

    lacks = frozenset() if has_grammar else frozenset({"grammar"})
    model = Model(write, capabilities=Capabilities(lacks=lacks))
    found = await ended(model, tools=[TOOL])
    if has_grammar:
        assert (found["calls"], found["finish"]) == (["f"], "tool_calls")
        assert model.asked[1].grammar is not None
        assert set(model.asked[1].stop_token_ids) == set(model.asked[0].stop_token_ids)
    else:
        assert (found["content"], found["calls"]) == ("Hello!", [])


async def test_a_format_is_still_enforced(ended: Fixture, harmony_ids: Fixture) -> None:
    def write(request: EngineRequest) -> Sequence[int]:
        answer = "<|channel|>final <|constrain|>json<|message|>{}<|return|>"
        return harmony_ids(answer) if len(model.asked) > 1 else thinks(request)

    model = Model(write)
    found = await ended(model, response_format={"type": "json_object"})
    assert found["content"] == "{}"
    assert model.asked[1].grammar == end_of_reasoning(model.asked[0].grammar)[1]


async def test_where_no_token_is_left_the_answer_ends(ended: Fixture) -> None:
    model = Model(thinks)
    found = await ended(model, max_tokens=10)
    assert (found["content"], found["finish"]) == ("", "length")


async def test_every_choice_answers(ended: Fixture) -> None:
    model = Model(thinks)
    found = await ended(model, n=3)
    assert sorted(found["content"]) == sorted("Hello!" * 3)
    assert len(model.asked) == 6


class Session:
    """One tool, whose result is a word."""

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def call(self, recipient: str, text: str) -> ToolResult:
        return ToolResult(f"result of {text}")


class Box:
    tools = frozenset({"python"})
    max_calls = 3

    def session(self, headers: Any) -> Session:
        return Session()


async def test_built_in_tools_are_still_run(ended: Fixture, harmony_ids: Fixture) -> None:
    """Their results join what was written, and the reasoning of the round after it ends too."""
    call = "<|channel|>commentary to=python code<|message|>1<|call|>"

    def write(request: EngineRequest) -> Sequence[int]:
        """It thinks, is told, calls, thinks, is still told, and answers."""
        if len(model.asked) in (1, 3):
            return THOUGHTS
        answer = call if len(model.asked) == 2 else "<|channel|>final<|message|>One.<|return|>"
        ids: Sequence[int] = harmony_ids(answer)
        return ids

    model = Model(write)
    found = await ended(model, Box(), tools=[{"type": "code_interpreter"}], max_tokens=90_000)
    assert found["content"] == "One."
    _, second, third, fourth = model.asked
    assert third.prompt_token_ids[: len(second.prompt_token_ids)] == second.prompt_token_ids
    assert fourth.prompt_token_ids[: len(third.prompt_token_ids)] == third.prompt_token_ids
    written = harmony_ids(call)[:-1]
    assert third.prompt_token_ids[len(second.prompt_token_ids) :][: len(written)] == written


async def test_twice_and_too_late(
    runtime_of: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture
) -> None:
    def write(request: EngineRequest) -> Sequence[int]:
        begun = list(request.prompt_token_ids)
        is_told = begun[-len(FINAL) :] == FINAL
        return harmony.encode_text("word " * 20_000) if is_told else THOUGHTS

    model = Model(write)
    client = await make_client(runtime_of(model))
    streaming = asyncio.ensure_future(client.post(CHAT, json=chat_body(stream=True)))
    await until_told(client, streaming, model)
    while (again := await told(client)).status_code == 200:  # until the first has taken effect
        assert not streaming.done()
    assert again.status_code == 409
    assert again.json()["error"]["code"] == "not_reasoning"
    streaming.cancel()
    await asyncio.wait([streaming])
    while (again := await told(client)).status_code == 409:  # until it is gone
        pass
    assert again.status_code == 404


@pytest.mark.parametrize("turns", range(12))
async def test_at_any_moment_the_answer_is_whole(
    runtime_of: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture, turns: int
) -> None:
    """Told before, while, and after it reasons, and after its end."""
    script = "<|channel|>analysis<|message|>a b c d e f<|end|><|start|>assistant"

    def write(request: EngineRequest) -> Sequence[int]:
        begun = list(request.prompt_token_ids)
        if begun[-len(FINAL) :] == FINAL:
            return thinks(request)
        ids = harmony.encode_marked(script)
        return [*ids, *FINAL, *thinks(replace(request, prompt_token_ids=tuple(FINAL)))]

    client = await make_client(runtime_of(Model(write)))
    streaming = asyncio.ensure_future(client.post(CHAT, json=chat_body(stream=True)))
    statuses = set()
    for _ in range(turns):
        statuses.add((await told(client)).status_code)
    found = collected(events((await streaming).text))
    assert statuses <= {200, 404, 409}
    assert (found["content"], found["finish"]) == ("Hello!", "stop")
    assert "a b c d e f".startswith(found["reasoning"])
    assert (await told(client)).status_code == 404


async def test_what_is_not_known(make_runtime: Fixture, make_client: Fixture) -> None:
    client = await make_client(make_runtime("x"))
    unknown = await told(client, "chatcmpl-0")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "completion_not_found")
    for body in ({}, {"action": "stop"}, END | {"more": 1}):
        assert (await client.post(f"{CHAT}/x/control", json=body)).status_code == 400
    as_llama = await client.post(f"{CHAT}/control", json=END | {"id": "chatcmpl-0"})
    assert as_llama.status_code == 404


class Keys:
    """Two keys, each of a tenant of its own."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return Principal(credentials.value)


async def test_another_callers_answer_is_unknown(
    runtime_of: Fixture, make_client: Fixture, chat_body: Fixture, events: Fixture
) -> None:
    runtime = runtime_of(Model(thinks), authenticator=Keys())
    client = await make_client(runtime)
    own, others = ({"authorization": f"Bearer {name}"} for name in ("mine", "yours"))
    body = chat_body(stream=True)
    streaming = asyncio.ensure_future(client.post(CHAT, json=body, headers=own))
    while (await told(client, **own)).status_code == 404:
        assert not streaming.done()
        assert (await told(client, **others)).status_code == 404
    assert collected(events((await streaming).text))["content"] == "Hello!"
