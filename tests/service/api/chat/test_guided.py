"""Guided answers end to end: the API over the native engine, whose model writes noise."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest
import pytest_asyncio
import torch

from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from service.harmony.vocabulary import CALL, CHANNEL, END, RETURN, encode_text
from service.run.server import create_app
from tests.guided.schemas import random_schema
from tools.benchmarks.checkpoint import write_random

Fixture = Callable[..., Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
# A random model would hardly ever end a text, a string or a list by itself.
ENDS = {str(END): 14.0, str(RETURN): 16.0, str(CALL): 16.0} | {
    str(encode_text(text)[0]): 11.0 for text in ('"', "}", "]", '"}', '"]', ":")
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"enum": [1, 3, 7]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
TOOLS = [WEATHER, CLOCK]
STRICT = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": CITY, "strict": True},
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [NAMED]},
}


def schema_format(schema: Any) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guided")
    return write_random(folder, hidden=16, num_layers=2, num_experts=4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(
    folder: Path, vocabulary_path: Path, make_runtime: Fixture
) -> AsyncIterator[httpx2.AsyncClient]:
    """A service around the native engine: one for all tests, none of which harms it."""
    config = NativeConfig(folder, vocabulary_path=vocabulary_path, num_threads=1, num_kv_blocks=800)
    runtime = make_runtime(engine=NativeEngine(config))
    await runtime.engine.start()
    transport = httpx2.ASGITransport(create_app(runtime), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client
    await runtime.engine.stop()


@pytest.fixture
def post(client: httpx2.AsyncClient, chat_body: Fixture) -> Fixture:
    """await post(**fields) gives the response."""

    async def send(**fields: Any) -> Any:
        body = chat_body(**{"max_tokens": 200, "logit_bias": ENDS, "seed": 1, **fields})
        return await client.post(PATH, json=body)

    return send


@pytest.fixture
def choices(post: Fixture) -> Fixture:
    """The choices of an answer that ended by themselves; at least one did."""

    async def send(**fields: Any) -> list[Any]:
        response = await post(n=3, **fields)
        assert response.status_code == 200, response.text
        ended = [c for c in response.json()["choices"] if c["finish_reason"] != "length"]
        assert ended
        return ended

    return send


@pytest.mark.parametrize("choice", [NAMED, ALLOWED])
async def test_a_forced_call_is_a_call_with_valid_arguments(choices: Fixture, choice: Any) -> None:
    """vllm#44216, vllm#48672, sglang#9102, cloudflare/ai#574."""
    for answer in await choices(tools=TOOLS, tool_choice=choice):
        assert answer["finish_reason"] == "tool_calls"
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)


async def test_required_calls_one_of_the_tools(choices: Fixture) -> None:
    for answer in await choices(tools=TOOLS, tool_choice="required", parallel_tool_calls=False):
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] in ("get_weather", "clock")
        assert isinstance(json.loads(call["function"]["arguments"]), dict)


async def test_none_never_calls(choices: Fixture) -> None:
    """vllm#30867: with none there is no call, and a format holds all the same."""
    fields = {"tools": TOOLS, "tool_choice": "none", "response_format": schema_format(CITY)}
    for answer in await choices(**fields):
        assert "tool_calls" not in answer["message"]
        jsonschema.validate(json.loads(answer["message"]["content"]), CITY)


async def test_a_format_is_enforced_beside_reasoning(choices: Fixture) -> None:
    """vllm#23120, sglang#31019, sglang#9259, TensorRT#4855, ollama#11691."""
    for answer in await choices(response_format=schema_format(CITY), logprobs=True):
        jsonschema.validate(json.loads(answer["message"]["content"]), CITY)
        assert answer["logprobs"]["content"]


@pytest.mark.parametrize(("word", "finish"), [("final", "stop"), ("comment", "tool_calls")])
async def test_tools_and_a_format_leave_both_possible(
    choices: Fixture, word: str, finish: str
) -> None:
    wish = dict.fromkeys(ENDS, 20.0) | {str(encode_text(word)[0]): 15.0, str(CHANNEL): 15.0}
    format = {"type": "json_object"}
    for answer in await choices(tools=[STRICT], response_format=format, logit_bias=wish):
        assert answer["finish_reason"] == finish
        calls = answer["message"].get("tool_calls")
        text = calls[0]["function"]["arguments"] if calls else answer["message"]["content"]
        assert isinstance(json.loads(text), dict)


async def test_structured_outputs(choices: Fixture) -> None:
    kinds: list[tuple[Any, set[str]]] = [
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "a[bc]"}, {"ab", "ac"}),
        ({"grammar": 'root ::= "x" ("y" | "z")'}, {"xy", "xz"}),
        ({"json": {"const": 5}}, {"5"}),
        ({"json": '{"const": 6}', "disable_any_whitespace": False}, {"6"}),  # vLLM takes text
        ({"json": {"const": 7}, "json_object": False, "whitespace_pattern": None}, {"7"}),
    ]
    for outputs, allowed in kinds:
        for answer in await choices(structured_outputs=outputs):
            assert answer["message"]["content"] in allowed


async def test_a_thinking_budget_ends_the_reasoning(post: Fixture) -> None:
    response = await post(thinking_token_budget=3, n=4)
    answer = response.json()
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 3 * 4


LARK = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "format": {
            "type": "grammar",
            "grammar": {"syntax": "lark", "definition": "start: <|call|>"},
        },
    },
}
BAD_STRICT = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"pattern": "["}}},
    },
}
SCHEMA_FIELD = "response_format.json_schema.schema"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": schema_format({"not": {}})}, SCHEMA_FIELD),
    ({"response_format": schema_format({"$ref": "http://x"})}, SCHEMA_FIELD),
    ({"response_format": schema_format({"pattern": "(a"})}, SCHEMA_FIELD),
    ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "[" * 500}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "7"}}, "structured_outputs.json"),
    (
        {"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace",
    ),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
    ({"tools": [CLOCK, LARK]}, "tools[1].custom.format.grammar.definition"),
    ({"tools": [CLOCK, BAD_STRICT]}, "tools[1].function.parameters"),
    ({"tools": TOOLS, "tool_choice": {**NAMED, "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
]


async def test_what_cannot_be_enforced_is_a_400(post: Fixture) -> None:
    """llama.cpp#19051, TensorRT#4855, vllm#53626: never unconstrained, never a 5xx."""
    for fields, param in REFUSED:
        for is_stream in (False, True):
            response = await post(stream=is_stream, **fields)
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert error["param"] == param
            assert error["message"]


@pytest.mark.parametrize("number", range(3))
async def test_random_schemas_hold(post: Fixture, number: int) -> None:
    """A sample of what `make guided` does for 200."""
    schema = random_schema(number)
    response = await post(response_format=schema_format(schema), temperature=1.3)
    assert response.status_code == 200, response.text
    for answer in response.json()["choices"]:
        if answer["finish_reason"] == "stop":
            found = json.loads(answer["message"]["content"])
            jsonschema.validate(found, schema, cls=jsonschema.Draft202012Validator)
