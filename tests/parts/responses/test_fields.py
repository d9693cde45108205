"""What a request for a response may hold; the fields that all routes have: ../test_fields.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from engines.base import EngineRequest
from engines.fields import RepetitionDetection
from service.harmony import vocabulary
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/responses"
FINAL = "<|channel|>final<|message|>Hi<|return|>"
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "17"}


@pytest.fixture
def engine_requests() -> list[EngineRequest]:
    return []


@pytest.fixture
async def client(
    make_runtime: Fixture, make_client: Fixture, engine_requests: list[EngineRequest]
) -> httpx2.AsyncClient:
    """Of a service with a short context, whose engine remembers what it was asked."""

    def script(request: EngineRequest) -> list[int]:
        engine_requests.append(request)
        return [vocabulary.CHANNEL, *vocabulary.encode_text("final"), vocabulary.MESSAGE, 1, 200002]

    runtime = make_runtime(engine=FakeEngine(FakeOptions(script=(1,), max_model_len=600), script))
    result: httpx2.AsyncClient = await make_client(runtime)
    return result


@pytest.fixture
def send(client: httpx2.AsyncClient, body: Fixture) -> Fixture:
    async def post(**changes: Any) -> Any:
        return await client.post(PATH, json=body(**changes), headers={"X-Request-Id": "same"})

    return post


@pytest.fixture
def refused(send: Fixture) -> Fixture:
    async def post(**changes: Any) -> dict[str, Any]:
        response = await send(**changes)
        assert 400 <= response.status_code < 500, response.text
        error: dict[str, Any] = response.json()["error"]
        assert error["message"]
        return error

    return post


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [7]}, "input[0]"),
        ({"input": [{"type": "floppy_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"role": "user", "content": "x", "foo": 1}]}, "input[0].foo"),
        ({"input": [RESULT]}, "input[0].call_id"),
        ({"input": [CALL, CALL]}, "input[1].call_id"),
        ({"input": [CALL, RESULT, RESULT]}, "input[2].call_id"),
        ({"input": [CALL | {"id": "x"}, RESULT | {"id": "x"}]}, "input[1].id"),
        ({"input": [{"id": "msg_unknown"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference", "id": ""}]}, "input[0].id"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {}}, "stream_options"),
        (
            {"stream_options": {"include_usage": True}, "stream": True},
            "stream_options.include_usage",
        ),
        ({"input": "x " * 700}, "input"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"include": ["everything"]}, "include[0]"),
        ({"truncation": "middle"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"context": "last_week"}}, "reasoning.context"),
        ({"text": {"verbosity": "huge"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "shell", "name": "a"}]}, "tools[0].name"),
        ({"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "tools[0]"),
        ({"tools": [{"type": "shell"}, {"type": "function", "name": "shell"}]}, "tools[1].name"),
        ({"tools": [{"type": "telepathy"}]}, "tools[0]"),
        ({"tool_choice": {"type": "shell"}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a"}] * 2}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
    ],
)
async def test_what_is_wrong_is_named_by_its_path(
    refused: Fixture, changes: dict[str, Any], param: str
) -> None:
    """vllm#53626: a choice that cannot be met is a 4xx, never a 5xx."""
    assert (await refused(**changes))["param"].startswith(param)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=x", "include[]=x"])
async def test_a_wrong_query_is_named(
    client: httpx2.AsyncClient, send: Fixture, query: str
) -> None:
    made = (await send()).json()
    error = (await client.get(f"{PATH}/{made['id']}/input_items?{query}")).json()["error"]
    assert error["param"] == query.partition("=")[0]


async def test_starting_after_is_for_streams(client: httpx2.AsyncClient, send: Fixture) -> None:
    made = (await send()).json()
    stray = await client.get(f"{PATH}/{made['id']}?starting_after=3")
    assert stray.json()["error"]["param"] == "starting_after"


async def test_what_codex_sends_is_served(
    send: Fixture, engine_requests: list[EngineRequest]
) -> None:
    """codex#10635: a whole request of the Codex CLI, in the second turn of its tool loop."""
    text = {"type": "input_text", "text": "Fix it."}
    thought: dict[str, Any] = {
        "type": "reasoning",
        "summary": [],
        "content": None,
        "encrypted_content": None,
    }
    shell = {"type": "function", "name": "shell", "strict": False, "parameters": {}}
    response = await send(
        instructions="You are Codex.",
        input=[
            {"type": "message", "role": "developer", "content": [text]},
            {"type": "message", "role": "user", "content": [text]},
            thought,
            CALL | {"name": "shell"},
            RESULT,
        ],
        tools=[shell, {"type": "web_search", "external_web_access": False}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "high", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="key",
        client_metadata={"x-codex-installation-id": "id"},
        text={"format": {"type": "text"}, "verbosity": "medium"},
    )
    assert response.status_code == 200, response.text
    assert "response.completed" in response.text
    prompt = b"".join(map(vocabulary.decode_bytes, engine_requests[0].prompt_token_ids))
    assert b"type shell" in prompt
    assert b"web_search" not in prompt


async def test_sampling_reaches_the_engine(
    send: Fixture, engine_requests: list[EngineRequest]
) -> None:
    """TensorRT-LLM#10651: and so do the tokens that end a turn."""
    asked = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "seed": 7}
    await send(**asked, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.5)
    assert set(vocabulary.STOP_TOKEN_IDS) <= set(engine_requests[0].stop_token_ids)
    sampling = engine_requests[0].sampling
    assert {name: getattr(sampling, name) for name in asked} == asked
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    repeats = {"max_pattern_size": 8, "min_count": 3, "min_pattern_size": None}
    await send(
        max_output_tokens=5, top_logprobs=3, logit_bias={"5": 2}, repetition_detection=repeats
    )
    sampling = engine_requests[1].sampling
    assert sampling.repetition_detection == RepetitionDetection(8, 3)
    assert (sampling.max_tokens, sampling.logprobs, sampling.logit_bias) == (5, 3, {5: 2.0})


async def test_guided_answers_reach_the_engine(
    send: Fixture, engine_requests: list[EngineRequest]
) -> None:
    """vllm#44216, vllm#48672, sglang#9980: required, a name and a schema all become a grammar."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}],
    }
    for changes, word in (
        ({"tools": [tool], "tool_choice": "required"}, "functions.f"),
        ({"tools": [tool], "tool_choice": {"type": "function", "name": "f"}}, "functions.f"),
        ({"tools": [tool], "tool_choice": allowed}, "functions.f"),
        ({"tools": [tool | {"strict": True}]}, "functions.f"),
        ({"text": {"format": {"type": "json_object"}}}, "JsonSchema"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}}, "age"),
        ({"thinking_token_budget": 9}, "max_tokens"),
    ):
        response = await send(**changes)
        assert response.status_code == 200, response.text
        grammar = engine_requests[-1].grammar
        assert grammar is not None
        assert word in repr(grammar)
    await send(tools=[tool], tool_choice="none")
    assert engine_requests[-1].grammar is None
    prompt = b"".join(map(vocabulary.decode_bytes, engine_requests[-1].prompt_token_ids))
    assert b"namespace functions" not in prompt


async def test_a_schema_that_cannot_be_enforced_names_its_place(refused: Fixture) -> None:
    """llama.cpp#19051: never silently unconstrained."""
    format = {
        "type": "json_schema",
        "name": "a",
        "schema": {"type": "object", "not": {}},
        "strict": True,
    }
    error = await refused(text={"format": format})
    assert error["param"].startswith("text.format")
