"""Tools of type `namespace`, without which Codex does not work (vllm#46737)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/responses"
SPAWN = {
    "type": "function",
    "name": "spawn",
    "description": "Start an agent.",
    "parameters": {"type": "object", "properties": {"task": {"type": "string"}}},
}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [SPAWN, {"type": "custom", "name": "tell"}],
}
SHELL = {"type": "function", "name": "spawn"}
PROMPT = """\
## functions

namespace functions {

type spawn = () => any;

} // namespace functions

## agents

// Other agents.
namespace agents {

// Start an agent.
type spawn = (_: {
task?: string,
}) => any;

// The input is free text: write it as it is, without JSON.
type tell = (_: string) => any;

} // namespace agents"""


@pytest.fixture
async def run(make_client: Fixture, make_runtime: Fixture, harmony_ids: Fixture) -> Any:
    """Post a body whose answer is this text; give the answer and what the engine was asked."""
    seen: list[EngineRequest] = []
    texts: list[str] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        ids: tuple[int, ...] = harmony_ids(texts[-1])
        return ids

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))

    async def post(text: str = "<|return|>", **body: Any) -> tuple[Any, EngineRequest]:
        texts.append(text)
        body = {"model": "gpt-oss-20b", "input": "Hi", "tools": [SHELL, AGENTS]} | body
        response = await client.post(PATH, json=body)
        assert response.status_code == 200, response.text
        return response, seen[-1]

    return post


def _call(recipient: str) -> str:
    return f'<|channel|>commentary to={recipient} <|constrain|>json<|message|>{{"a":1}}<|call|>'


async def test_the_model_reads_them_under_their_namespace(run: Fixture) -> None:
    _, request = await run()
    prompt = decode_marked(request.prompt_token_ids)
    assert PROMPT in prompt
    assert "the commentary channel: 'functions', 'agents'.<|end|>" in prompt


@pytest.mark.parametrize(
    "to", ["agents.spawn", "functions.agents.spawn", "agents.spawn<|channel|>"]
)
async def test_a_call_has_its_namespace_and_its_name_apart(run: Fixture, to: str) -> None:
    response, _ = await run(_call(to))
    (item,) = response.json()["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "agents", "spawn")
    assert response.json()["tools"][1]["tools"][0]["name"] == "spawn"


async def test_a_name_that_only_one_namespace_has_is_understood_without_it(run: Fixture) -> None:
    response, _ = await run(_call("functions.tell"))
    (item,) = response.json()["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "agents", "tell")


async def test_a_plain_function_keeps_its_name_and_has_no_namespace(run: Fixture) -> None:
    response, _ = await run(_call("functions.spawn"))
    (item,) = response.json()["output"]
    assert item["name"] == "spawn"
    assert "namespace" not in item


async def test_a_stream_tells_the_namespace_from_the_first_event_on(
    run: Fixture, typed_events: Fixture
) -> None:
    response, _ = await run(_call("agents.spawn"), stream=True)
    items = [event["item"] for event in typed_events(response.text) if "item" in event]
    assert [(item["namespace"], item["name"]) for item in items] == [("agents", "spawn")] * 2


async def test_replayed_calls_and_their_results_are_the_namespaces(run: Fixture) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "spawn", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "17"}
    said = {"role": "user", "content": "Hi"}
    for namespace, recipient in (("agents", "agents.spawn"), (None, "functions.spawn")):
        _, request = await run(input=[said, call | {"namespace": namespace}, result])
        prompt = decode_marked(request.prompt_token_ids)
        assert f"<|start|>assistant to={recipient}<|channel|>commentary json" in prompt
        assert f"<|start|>{recipient} to=assistant<|channel|>commentary<|message|>17" in prompt


@pytest.mark.parametrize(
    ("choice", "is_there", "is_missing"),
    [
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents.spawn", "functions"),
        ({"type": "function", "name": "spawn"}, "functions.spawn", "agents"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "namespace", "name": "agents"}],
            },
            "agents.tell",
            "functions",
        ),
        ("required", "agents.spawn", "nobody"),
    ],
)
async def test_a_choice_may_name_one_or_all_of_a_namespace(
    run: Fixture, choice: Any, is_there: str, is_missing: str
) -> None:
    _, request = await run(tool_choice=choice)
    grammar = str(request.grammar)
    assert f" to={is_there}" in grammar
    assert f" to={is_missing}" not in grammar


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [AGENTS | {"tools": [SPAWN, SPAWN]}]}, "tools[0].tools[1].name"),
        ({"tools": [AGENTS, AGENTS]}, "tools[1].tools[0].name"),
        ({"tools": [AGENTS | {"tools": []}]}, "tools[0].tools"),
        ({"tools": [AGENTS | {"tools": [{"type": "web_search"}]}]}, "tools[0].tools[0]"),
        ({"tools": [AGENTS | {"name": "a.b"}]}, "tools[0].name"),
        (
            {"tool_choice": {"type": "function", "name": "spawn", "namespace": "x"}},
            "tool_choice",
        ),
    ],
)
async def test_what_is_wrong_is_named(
    make_client: Fixture, make_runtime: Fixture, changes: dict[str, Any], param: str
) -> None:
    client = await make_client(make_runtime("<|return|>"))
    body = {"model": "gpt-oss-20b", "input": "Hi", "tools": [AGENTS]} | changes
    response = await client.post(PATH, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
