"""Tools that arrive during the conversation: found by a search, or as an item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.parts.responses.typed_tools import (
    FINAL,
    MAIL,
    SEARCH,
    SHELL,
    SHELL_WRITTEN,
    WEATHER,
    call,
    found,
)

Fixture = Callable[..., Any]

PATH = "/v1/responses"


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
