"""Tools with a type of their own: `shell`, `local_shell`, `apply_patch`, `tool_search`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from parts.responses.schemas.response import ResponseObject
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.parts.responses.typed_tools import (
    PATCH,
    PATCH_WRITTEN,
    SEARCH,
    SHELL,
    SHELL_WRITTEN,
    WEATHER,
    call,
)

Fixture = Callable[..., Any]

PATH = "/v1/responses"


CALLS: list[tuple[dict[str, Any], str, str, dict[str, Any]]] = [
    (
        SHELL,
        SHELL_WRITTEN,
        "shell_call",
        {
            "action": {
                "commands": ["ls -la", "pwd"],
                "timeout_ms": 900,
                "max_output_length": None,
            },
            "environment": {"type": "local"},
        },
    ),
    (
        {"type": "local_shell"},
        '{"command":["ls","-la"],"working_directory":"/tmp"}',
        "local_shell_call",
        {
            "action": {
                "type": "exec",
                "command": ["ls", "-la"],
                "env": {},
                "timeout_ms": None,
                "user": None,
                "working_directory": "/tmp",
            }
        },
    ),
    (
        PATCH,
        PATCH_WRITTEN,
        "apply_patch_call",
        {"operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+é"}},
    ),
    (
        PATCH,
        '{"type":"delete_file","path":"a.py"}',
        "apply_patch_call",
        {"operation": {"type": "delete_file", "path": "a.py"}},
    ),
    (
        SEARCH,
        '{"query":"mail"}',
        "tool_search_call",
        {"execution": "client", "arguments": {"query": "mail"}},
    ),
]


@pytest.mark.parametrize(("tool", "written", "kind", "fields"), CALLS)
async def test_a_call_is_an_item_of_its_type_whole_and_streamed(
    run: Fixture, typed_events: Fixture, tool: Any, written: str, kind: str, fields: Any
) -> None:
    text = call(tool["type"], written)
    response, prompt = await run(text, tools=[tool, WEATHER])
    assert f"\ntype {tool['type']} = (_: {{" in prompt
    document = response.json()
    ResponseObject.model_validate(document)
    (item,) = document["output"]
    head = {"id": item["id"], "type": kind, "status": "completed", "call_id": item["call_id"]}
    assert item == {**head, **fields}
    events = typed_events((await run(text, tools=[tool, WEATHER], stream=True))[0].text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added, done = (
        next(event for event in events if event["type"] == f"response.output_item.{name}")
        for name in ("added", "done")
    )
    assert added["item"] == done["item"] | {"status": "in_progress"}
    assert events[-1]["response"]["output"] == [done["item"]]
    assert {**done["item"], **head} == item


async def test_commands_of_a_shell_have_events(run: Fixture, typed_events: Fixture) -> None:
    response, _ = await run(call("shell", SHELL_WRITTEN), tools=[SHELL], stream=True)
    events = typed_events(response.text)
    names = [event["type"].removeprefix("response.") for event in events]
    of_one = [f"shell_call_command.{name}" for name in ("added", "delta", "done")]
    assert names[2:-1] == ["output_item.added", *of_one, *of_one, "output_item.done"]
    assert [event["command_index"] for event in events[3:9]] == [0, 0, 0, 1, 1, 1]
    assert [events[index]["command"] for index in (5, 8)] == ["ls -la", "pwd"]
    assert [events[index]["delta"] for index in (4, 7)] == ["ls -la", "pwd"]


@pytest.mark.parametrize("tool", [SHELL, {"type": "local_shell"}, PATCH])
async def test_only_what_the_item_can_hold_may_be_called(
    make_client: Fixture, make_runtime: Fixture, tool: Any
) -> None:
    seen: list[EngineRequest] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        return (200002,)

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))
    for tools in ([tool], [WEATHER]):
        body = {"model": "gpt-oss-20b", "input": "Hi", "tools": tools}
        assert (await client.post(PATH, json=body)).status_code == 200
    assert seen[0].grammar is not None
    assert seen[1].grammar is None


async def test_a_call_that_is_cut_off_keeps_what_is_whole(run: Fixture) -> None:
    cut = call("shell", '{"commands":["ls","rm -rf /tmp/a')[: -len("<|call|>")]
    response, _ = await run(cut, tools=[SHELL], max_output_tokens=24)
    document = response.json()
    assert document["status"] == "incomplete"
    (item,) = document["output"]
    assert (item["status"], item["action"]["commands"]) == ("incomplete", ["ls"])


async def test_a_function_of_that_name_stays_a_function(run: Fixture) -> None:
    function = {"type": "function", "name": "shell", "parameters": {}}
    response, _ = await run(call("shell", SHELL_WRITTEN), tools=[function])
    (item,) = response.json()["output"]
    assert (item["type"], item["arguments"]) == ("function_call", SHELL_WRITTEN)


OUTPUTS = [
    (
        {
            "type": "shell_call_output",
            "status": "completed",
            "max_output_length": 4096,
            "output": [
                {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 2}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
        "a\nno\n[exit code 2]\n[timed out]",
    ),
    ({"type": "local_shell_call_output", "output": "seen"}, "seen"),
    (
        {"type": "apply_patch_call_output", "status": "failed", "output": "No such file"},
        "No such file",
    ),
    ({"type": "apply_patch_call_output", "status": "completed"}, "[completed]"),
]


@pytest.mark.parametrize(("output", "told"), OUTPUTS)
async def test_an_item_and_its_output_are_read_back(
    run: Fixture, output: dict[str, Any], told: str
) -> None:
    kind = str(output["type"]).removesuffix("_call_output")
    tool, written = next((tool, text) for tool, text, *_ in CALLS if tool["type"] == kind)
    text = call(kind, written)
    (item,) = (await run(text, tools=[tool]))[0].json()["output"]
    noted = {"created_by": "me", "internal_chat_message_metadata_passthrough": {"a": 1}}
    history = [
        {"role": "user", "content": "Hi"},
        item | noted,
        {"call_id": item["call_id"], **output} | noted,
    ]
    _, prompt = await run(input=history, tools=[tool])
    assert prompt.endswith(
        f"<|start|>user<|message|>Hi<|end|><|start|>assistant to=functions.{kind}"
        f"<|channel|>commentary json<|message|>{written}<|call|><|start|>functions.{kind} "
        f"to=assistant<|channel|>commentary<|message|>{told}<|end|><|start|>assistant"
    )


async def test_an_output_of_local_shell_may_have_its_calls_id_alone(run: Fixture) -> None:
    made = (await run(call("local_shell", '{"command":["ls"]}'), tools=[{"type": "local_shell"}]))[
        0
    ]
    document = made.json()
    output = {"type": "local_shell_call_output", "id": document["output"][0]["call_id"]}
    _, prompt = await run(
        input=[output | {"output": "seen"}], previous_response_id=document["id"], tools=[]
    )
    assert (
        "<|start|>functions.local_shell to=assistant<|channel|>commentary<|message|>seen" in prompt
    )


async def test_skills_are_told_to_the_model(run: Fixture) -> None:
    skill = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
    _, prompt = await run(
        tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}]
    )
    assert "// - pdf: Reads PDFs. (/skills/pdf)\n" in prompt


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "shell"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "shell"}]},
    ],
)
async def test_a_choice_by_type_is_met(
    make_client: Fixture, make_runtime: Fixture, choice: dict[str, Any]
) -> None:
    seen: list[EngineRequest] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        return (200002,)

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))
    body = {"model": "gpt-oss-20b", "input": "Hi", "tools": [SHELL, WEATHER], "tool_choice": choice}
    assert (await client.post(PATH, json=body)).status_code == 200
    assert "to=functions.shell" in repr(seen[0].grammar)
    assert "weather" not in repr(seen[0].grammar)
