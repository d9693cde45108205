"""Histories that began at another server: what its tools did, and its model thought."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from parts.responses.schemas.tool_items import FOREIGN as FOREIGN_KINDS
from tests.parts.responses.typed_tools import (
    FINAL,
    MAIL,
    WEATHER,
    found,
)

Fixture = Callable[..., Any]

PATH = "/v1/responses"


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
