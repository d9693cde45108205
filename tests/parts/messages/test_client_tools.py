"""Tools that the client runs, whose schemas their types imply."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from anthropic.types import beta

from engines.base import EngineRequest
from parts.messages.client_tools import description_of, schema_of
from service.harmony.vocabulary import decode_marked
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/messages"
EDITOR = "str_replace_based_edit_tool"
CREATE = {"command": "create", "path": "/a.txt", "file_text": "x"}
# By type: the tool's name, inputs that its clients run, and some that they cannot.
TOOLS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "bash_20250124": ("bash", [{"command": "ls"}, {"restart": True}], [{}, {"restart": False}]),
    "text_editor_20241022": (
        "str_replace_editor",
        [
            {"command": "undo_edit", "path": "/a.txt"},
            {"command": "insert", "path": "/a.txt", "insert_line": 0, "new_str": "x"},
        ],
        [{"command": "delete", "path": "/a.txt"}],
    ),
    "text_editor_20250728": (
        EDITOR,
        [
            CREATE,
            {"command": "view", "path": "/a.txt", "view_range": [2, -1]},
            {"command": "str_replace", "path": "/a.txt", "old_str": "x", "new_str": ""},
            {"command": "insert", "path": "/a.txt", "insert_line": 0, "insert_text": "x"},
        ],
        [{"command": "undo_edit", "path": "/a.txt"}, {"command": "view"}],
    ),
    "memory_20250818": ("memory", [CREATE], [{"command": "undo_edit", "path": "/a.txt"}]),
}


def call(name: str, written: str) -> str:
    return (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{written}<|call|>"
    )


@pytest.mark.parametrize("kind", TOOLS)
async def test_it_is_a_function_to_the_model_and_its_name_to_the_client(
    make_runtime: Fixture,
    make_client: Fixture,
    message_body: Fixture,
    harmony_ids: Fixture,
    kind: str,
) -> None:
    name, (given, *_), _ = TOOLS[kind]
    prompts: list[str] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        prompts.append(decode_marked(request.prompt_token_ids))
        return tuple(harmony_ids(call(name, json.dumps(given))))

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))
    typed = {"type": kind, "name": name, "cache_control": {"type": "ephemeral"}}
    function = {
        "name": name,
        "description": description_of(kind),
        "input_schema": schema_of(kind),
    }
    for choice in ({"type": "auto"}, {"type": "tool", "name": name}):
        for tool in (typed, function):
            body = message_body(tools=[tool], tool_choice=choice)
            message = (await client.post(PATH, json=body)).json()
            [block] = message["content"]
            assert (block["type"], block["name"], block["input"]) == ("tool_use", name, given)
            result = {"type": "tool_result", "tool_use_id": block["id"], "content": "done"}
            turns = [
                *body["messages"],
                {"role": "assistant", "content": [block]},
                {"role": "user", "content": [result]},
            ]
            again = await client.post(PATH, json=body | {"messages": turns})
            assert again.status_code == 200, again.text
    assert prompts[:2] == prompts[2:4] == prompts[4:6] == prompts[6:]
    assert f"type {name} = " in prompts[0]


@pytest.mark.parametrize("kind", TOOLS)
def test_the_schema_has_the_inputs_that_its_clients_run(kind: str) -> None:
    _, taken, refused = TOOLS[kind]
    validator = jsonschema.Draft202012Validator(schema_of(kind))
    assert [value for value in taken if not validator.is_valid(value)] == []
    assert [value for value in refused if validator.is_valid(value)] == []


def test_the_commands_of_memory_are_those_of_the_sdk() -> None:
    for each in schema_of("memory_20250818")["anyOf"]:
        command = each["properties"]["command"]["const"]
        title = "".join(map(str.capitalize, command.split("_")))
        published = getattr(beta, f"BetaMemoryTool20250818{title}Command").model_fields
        assert {*published} == {*each["properties"]}
        assert {n for n, field in published.items() if field.is_required()} == {*each["required"]}


async def test_a_tool_that_needs_sight_is_still_refused(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture
) -> None:
    client = await make_client(make_runtime("<|return|>"))
    tools = [{"type": "computer_20250124", "name": "computer", "display_width_px": 1}]
    response = await client.post(PATH, json=message_body(tools=tools))
    assert response.status_code == 400
    assert response.json()["error"]["details"]["param"].startswith("tools[0]")


async def test_a_deferred_one_is_offered_when_a_message_defines_it(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture
) -> None:
    client = await make_client(make_runtime("<|channel|>final<|message|>ok<|return|>"))
    bash = {"type": "bash_20250124", "name": "bash"}
    addition = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": bash}}
    turns = [
        {"role": "system", "content": [addition]},
        {"role": "user", "content": "Hello!"},
    ]
    counts = []
    for body in (message_body(), message_body(messages=turns), message_body(tools=[bash])):
        del body["max_tokens"]
        counts.append((await client.post(f"{PATH}/count_tokens", json=body)).json()["input_tokens"])
    assert counts[0] < counts[2] <= counts[1]
