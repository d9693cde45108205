"""Unknown options are refused by name; nulls and what replayed history carries do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.api.common.schema import BAGGAGE
from tests.parts.families.table import CHAT, MESSAGES, MODEL, RESPONSES

Fixture = Callable[..., Any]

ANY = {"any": ["thing"]}
JUNK = dict.fromkeys(sorted(BAGGAGE), ANY) | {"unheard_of": None}


def _chat(extra: dict[str, Any]) -> dict[str, Any]:
    """A tool loop in which every part of the history carries `extra`."""
    call = {"name": "f", "arguments": "{}"} | extra
    calls = [{"id": "c", "type": "function", "function": call} | extra]
    text = [{"type": "text", "text": "Hi"} | extra]
    return {
        "messages": [
            {"role": "user", "content": text} | extra,
            {"role": "assistant", "content": None, "tool_calls": calls, "audio": None} | extra,
            {"role": "tool", "tool_call_id": "c", "content": text} | extra,
        ]
    }


def _responses(extra: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    text = {"type": "output_text", "text": "Hm"} | extra
    return {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"} | extra]} | extra,
            {"type": "message", "role": "assistant", "content": [text]} | extra,
            call | {"namespace": None, "async_": None} | extra,
            {"type": "function_call_output", "call_id": "c", "output": "1"} | extra,
        ]
    }


def _messages(extra: dict[str, Any]) -> dict[str, Any]:
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}} | extra
    result = {"type": "tool_result", "tool_use_id": "c", "content": "1"} | extra
    return {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"} | extra]} | extra,
            {"role": "assistant", "content": [use]} | extra,
            {"role": "user", "content": [result]},
        ],
    }


ROUTES = [(CHAT, _chat), (RESPONSES, _responses), (MESSAGES, _messages)]


@pytest.fixture
async def post(make_client: Fixture, make_runtime: Fixture) -> Any:
    client = await make_client(make_runtime("<|channel|>final<|message|>Hi<|return|>"))

    async def post(path: str, body: dict[str, Any]) -> Any:
        return await client.post(path, json=MODEL | body)

    return post


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_baggage_and_nulls_in_the_history_change_nothing(
    post: Fixture, path: str, body: Fixture
) -> None:
    await post(path, body({}))  # so that both find the same in the prefix cache
    plain, laden = await post(path, body({})), await post(path, body(JUNK))
    assert laden.status_code == plain.status_code == 200, laden.text
    assert laden.json()["usage"] == plain.json()["usage"]


async def test_what_vs_code_sends_back_is_let_pass(post: Fixture) -> None:
    cached = {"copilot_cache_control": {"type": "ephemeral"}}
    thoughts = {"cot_id": "t", "cot_summary": "Hm", "reasoning": "Hm", "reasoning_content": "Hm"}
    body = _chat({})
    body["messages"][0] |= cached
    body["messages"][1] |= thoughts
    body["tools"] = [{"type": "function", "function": {"name": "f"}} | cached]
    response = await post(CHAT, body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_an_option_that_is_null_asks_for_nothing(
    post: Fixture, path: str, body: Fixture
) -> None:
    assert (await post(path, body({}) | {"unheard_of": None})).status_code == 200
    error = (await post(path, body({}) | {"unheard_of": 0})).json()["error"]
    assert error["message"].startswith("unheard_of is not a field of this API")


def _user(*parts: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts], **more}]


def _tool(function: dict[str, Any], **more: Any) -> dict[str, Any]:
    return _chat({}) | {"tools": [{"type": "function", "function": function, **more}]}


NO_ID = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
TEXT_PART = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        (CHAT, {"messages": _user(foo=1)}, "messages[0].foo"),
        (CHAT, {"messages": _user(TEXT_PART | {"foo": {"b": 1}})}, "messages[0].content[0].foo"),
        (CHAT, _tool({"name": "f"}, foo=1), "tools[0].foo"),
        (CHAT, _tool({"name": "f", "foo": 1}), "tools[0].function.foo"),
        (CHAT, _tool({}), "tools[0].function.name"),
        (CHAT, _chat({}) | {"tools": [{"type": "function"}]}, "tools[0].function"),
        (
            CHAT,
            {"messages": [{"role": "assistant", "tool_calls": [NO_ID], "x": None}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            RESPONSES,
            {"input": _user({"type": "input_text", "text": "a", "foo": 1})},
            "input[0].content[0].foo",
        ),
        (
            MESSAGES,
            {"max_tokens": 1, "messages": _user({"type": "text"})},
            "messages[0].content[0].text",
        ),
    ],
)
async def test_the_error_names_the_field_and_not_a_kind_of_object(
    post: Fixture, path: str, body: dict[str, Any], where: str
) -> None:
    response = await post(path, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["message"].startswith(f"{where} ")
    assert error.get("param", where) == where


async def test_a_part_of_another_route_is_told_its_name_here(post: Fixture) -> None:
    parts = {"input_text": CHAT, "text": RESPONSES}
    for kind, path in parts.items():
        body = {"messages" if path == CHAT else "input": _user({"type": kind, "text": "Hi"})}
        message = (await post(path, body)).json()["error"]["message"]
        assert f"use '{'text' if path == CHAT else 'input_text'}'" in message
