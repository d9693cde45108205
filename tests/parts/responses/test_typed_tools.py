"""Tools with a type of their own: `shell`, `local_shell`, `apply_patch`, `tool_search`, `mcp`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from parts.responses.schemas.response import ResponseObject
from parts.responses.schemas.tool_items import FOREIGN as FOREIGN_KINDS
from service.harmony.vocabulary import decode_marked
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/responses"
FINAL = "<|channel|>final<|message|>Done.<|return|>"
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Find tools of the office.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
MAIL = {
    "type": "namespace",
    "name": "mail",
    "description": "Letters.",
    "tools": [{"type": "function", "name": "send", "defer_loading": True, "parameters": {}}],
}


def call(name: str, arguments: str) -> str:
    return (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    )


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

    async def post(text: str = FINAL, **body: Any) -> tuple[Any, str]:
        texts.append(text)
        body = {"model": "gpt-oss-20b", "input": "Hi"} | body
        response = await client.post(PATH, json=body)
        assert response.status_code == 200, response.text
        return response, decode_marked(seen[-1].prompt_token_ids)

    return post


SHELL_WRITTEN = '{"commands":["ls -la","pwd"],"timeout_ms":900}'
PATCH_WRITTEN = '{"type":"update_file","path":"a.py","diff":"@@\\n-x\\n+é"}'
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


# Tools that arrive during the conversation


def found(*tools: Any) -> list[Any]:
    head = {"call_id": "s", "execution": "client", "status": "completed"}
    return [
        {"role": "user", "content": "Hi"},
        {"type": "tool_search_call", "arguments": {"query": "x"}, **head},
        {"type": "tool_search_output", "tools": [*tools], **head},
    ]


async def test_a_search_is_a_function_and_what_it_finds_is_offered(run: Fixture) -> None:
    _, before = await run(tools=[SEARCH])
    assert "// Find tools of the office.\ntype tool_search = (_: {" in before
    _, after = await run(input=found(MAIL, WEATHER), tools=[SEARCH])
    assert "// Letters.\nnamespace mail {\n\ntype send = " in after
    assert "type weather = " in after
    assert after.endswith(
        '<|start|>assistant to=functions.tool_search<|channel|>commentary json<|message|>{"query":'
        '"x"}<|call|><|start|>functions.tool_search to=assistant<|channel|>commentary<|message|>'
        "These tools can be called now: mail.send, weather.<|end|><|start|>assistant"
    )


async def test_a_call_of_a_found_tool_has_its_namespace(run: Fixture) -> None:
    text = "<|channel|>commentary to=mail.send <|constrain|>json<|message|>{}<|call|>"
    response, _ = await run(text, input=found(MAIL), tools=[SEARCH])
    (item,) = response.json()["output"]
    assert (item["namespace"], item["name"]) == ("mail", "send")


async def test_found_tools_stay_offered_when_the_response_is_continued(run: Fixture) -> None:
    made = (await run(input=found(MAIL), tools=[SEARCH]))[0].json()
    _, prompt = await run(previous_response_id=made["id"], tools=[SEARCH])
    assert "namespace mail {\n\ntype send = " in prompt


async def test_a_search_that_finds_nothing_says_so(run: Fixture) -> None:
    _, prompt = await run(input=found(), tools=[SEARCH])
    assert "<|message|>No tools were found.<|end|>" in prompt


@pytest.mark.parametrize(
    ("search", "is_offered"), [(SEARCH, False), ({"type": "tool_search"}, True), (None, True)]
)
async def test_deferred_tools_wait_for_a_search_of_the_clients(
    run: Fixture, search: Any, is_offered: bool
) -> None:
    tools = [WEATHER, MAIL, *filter(None, [search])]
    _, prompt = await run(tools=tools)
    assert ("type send" in prompt) is is_offered
    assert "type weather" in prompt
    assert ("type tool_search" in prompt) is (search is SEARCH)


async def test_tools_may_come_as_an_item(run: Fixture) -> None:
    """codex#39532: the tools of "Responses-Lite"."""
    item = {"type": "additional_tools", "role": "developer", "tools": [SHELL, MAIL, WEATHER]}
    history = [item, {"role": "user", "content": "Hi"}]
    response, prompt = await run(
        call("shell", SHELL_WRITTEN), input=history, reasoning={"context": "all_turns"}
    )
    assert "type shell = " in prompt
    assert "namespace mail {" in prompt
    assert response.json()["output"][0]["type"] == "shell_call"


async def test_a_wrong_tool_in_an_item_is_named(
    make_client: Fixture, make_runtime: Fixture
) -> None:
    client = await make_client(make_runtime(FINAL))
    item = {"type": "additional_tools", "tools": [{"type": "function"}]}
    response = await client.post(PATH, json={"model": "gpt-oss-20b", "input": [item]})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("input[0].tools[0]")


# Histories that began elsewhere

FOREIGN = [
    (
        {
            "type": "mcp_call",
            "id": "m",
            "server_label": "deep wiki",
            "name": "ask",
            "arguments": '{"q":1}',
            "output": "So.",
        },
        'to=deep_wiki.ask<|channel|>commentary json<|message|>{"q":1}<|call|>',
        "So.",
    ),
    (
        {
            "type": "file_search_call",
            "id": "f",
            "queries": ["q"],
            "status": "completed",
            "results": [{"filename": "a.md", "text": "Words.", "score": 0.5}],
        },
        'to=functions.file_search<|channel|>commentary json<|message|>{"queries":["q"]}<|call|>',
        "a.md\nWords.",
    ),
    (
        {
            "type": "image_generation_call",
            "id": "g",
            "result": "iVBORw0KGgo=",
            "status": "completed",
        },
        'to=functions.image_generation<|channel|>commentary json<|message|>{"prompt":""}<|call|>',
        "[image: this model reads text only]",
    ),
]


@pytest.mark.parametrize(("item", "called", "told"), FOREIGN)
async def test_what_other_servers_tools_did_is_told(
    run: Fixture, item: dict[str, Any], called: str, told: str
) -> None:
    history = [{"role": "user", "content": "Hi"}, item, {"role": "user", "content": "And?"}]
    response, prompt = await run(input=history)
    assert f"<|start|>assistant {called}<|start|>" in prompt
    assert f"to=assistant<|channel|>commentary<|message|>{told}<|end|>" in prompt
    assert response.json()["status"] == "completed"


async def test_thoughts_of_another_server_are_taken(run: Fixture) -> None:
    thought = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "In short."}],
        "content": [
            {"type": "text", "text": "Look it up."},
            {"type": "encrypted_content", "encrypted_content": "gAAAAABo"},
        ],
        "encrypted_content": "gAAAAABo",
        "encrypted_function_args": None,
    }
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": "4"}
    _, prompt = await run(input=[{"role": "user", "content": "Hi"}, thought, call, result])
    assert (
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant to=functions.w"
        in prompt
    )


ODD: list[Any] = [None, 1, [], {}, "x", [1], {"a": 1}]


@pytest.mark.parametrize("value", ODD)
async def test_whatever_another_servers_item_holds_is_no_fault_of_ours(
    make_client: Fixture, make_runtime: Fixture, value: Any
) -> None:
    client = await make_client(make_runtime(FINAL))
    names = ("action", "output", "queries", "results", "arguments", "name", "server_label")
    fields = dict.fromkeys((*names, "error", "code", "result", "revised_prompt"), value)
    for kind in FOREIGN_KINDS:
        item = {"type": kind, "id": f"i_{kind}", "call_id": kind.removesuffix("_output"), **fields}
        body = {"model": "gpt-oss-20b", "input": [*before(kind), item]}
        response = await client.post(PATH, json=body)
        assert response.status_code == 200, response.text


def before(kind: str) -> list[Any]:
    """What an output answers."""
    call = kind.removesuffix("_output")
    called = [{"type": call, "call_id": call, "id": f"i_{call}"}] if call != kind else []
    return [{"role": "user", "content": "Hi"}, *called]


async def test_a_computers_screen_is_one_line(run: Fixture) -> None:
    history = [
        {
            "type": "computer_call",
            "id": "c",
            "call_id": "cc",
            "action": {"type": "screenshot"},
            "pending_safety_checks": [],
            "status": "completed",
        },
        {
            "type": "computer_call_output",
            "call_id": "cc",
            "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,aaaa"},
        },
    ]
    _, prompt = await run(input=history)
    assert "to=functions.computer<|channel|>commentary json<|message|>" in prompt
    assert "<|message|>[image: this model reads text only]<|end|>" in prompt


async def test_what_says_nothing_to_the_model_is_taken(run: Fixture) -> None:
    history = [
        {"type": "mcp_list_tools", "id": "l", "server_label": "x", "tools": []},
        {"type": "mcp_approval_request", "id": "q", "server_label": "x", "name": "y"},
        {"type": "mcp_approval_response", "approval_request_id": "q", "approve": True},
        {"type": "tool_search_call", "execution": "server", "arguments": {}, "call_id": None},
        {"type": "tool_search_output", "execution": "server", "call_id": None, "tools": [WEATHER]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABoISQ24"},
        {"role": "user", "content": "Hi"},
    ]
    _, prompt = await run(input=history)
    assert prompt.count("<|start|>") == 4  # system, developer, user, assistant
    assert "type weather" in prompt


async def test_items_are_listed_as_they_came_without_their_pictures(
    make_client: Fixture, make_runtime: Fixture
) -> None:
    client = await make_client(make_runtime(FINAL))
    body = {"model": "gpt-oss-20b", "input": [*found(MAIL), FOREIGN[2][0]]}
    made = (await client.post(PATH, json=body)).json()
    items = (await client.get(f"{PATH}/{made['id']}/input_items?order=asc")).json()["data"]
    assert [item["type"] for item in items[1:]] == [
        "tool_search_call",
        "tool_search_output",
        "image_generation_call",
    ]
    assert items[2]["tools"] == [MAIL]
    assert items[3]["result"] is None
    assert "iVBOR" not in json.dumps(items)
