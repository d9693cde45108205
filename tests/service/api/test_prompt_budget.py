"""Prompts beyond the context, or the work anybody gets, are refused by name on every route."""

from __future__ import annotations

from typing import Any

import pytest

from service.api.common import prompt

Fixture = Any


LONG = "a" * 200_000
TURN = {"role": "user", "content": "Hi"}


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime("<|channel|>final<|message|>Hi.", max_model_len=1500))


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/chat/completions", {"messages": [TURN] * 2000}, "messages"),
        ("/v1/chat/completions/render", {"messages": [TURN] * 2000}, "messages"),
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["Hi", LONG]}, "prompt[1]"),
        ("/v1/responses", {"input": LONG}, "input"),
        ("/v1/messages", {"messages": [TURN] * 2000, "max_tokens": 9}, "messages"),
    ],
)
async def test_a_prompt_beyond_the_context_is_refused_by_its_field(
    client: Any, path: str, body: dict[str, Any], param: str
) -> None:
    response = await client.post(path, json={"model": "gpt-oss-20b", **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    details = error.get("details", error)
    assert details["param"] == param
    assert details.get("error_code", error.get("code")) == "context_length_exceeded"
    assert param in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "word " * 4000}),
        ("/tokenize", {"messages": [{"role": "user", "content": "word " * 4000}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "word " * 4000}]}),
    ],
)
async def test_counting_goes_beyond_the_context_and_has_a_bound_of_its_own(
    client: Any, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "gpt-oss-20b", **body}
    assert (await client.post(path, json=body)).status_code == 200
    monkeypatch.setattr(prompt, "MAX_COUNTED", 1000)
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert "This route takes 1000 tokens" in response.json()["error"]["message"]


async def test_a_tool_that_takes_too_long_to_describe_is_named(
    client: Any, chat_body: Fixture
) -> None:
    defs = {"d": {"description": "word " * 20_000}}
    properties = {f"p{i}": {"$ref": "#/$defs/d"} for i in range(1000)}
    function = {"name": "look_up", "parameters": {"$defs": defs, "properties": properties}}
    body = chat_body(tools=[{"type": "function", "function": function}])
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("tools", "schema_too_complex")
    assert "'look_up'" in error["message"]
