"""Web search on /v1/messages: the browser's calls, shown as Anthropic's server tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.needs import needs

pytestmark = needs("messages")

Fixture = Callable[..., Any]
Script = dict[str, str]

PATH = "/v1/messages"
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
OPEN = '<|channel|>analysis to=browser.open code<|message|>{"id": "https://a.example/"}<|call|>'
TOLD = "[0] 10 results for «é»"


def body(**changes: Any) -> dict[str, Any]:
    question = {"role": "user", "content": "2 + 2?"}
    base = {"model": "gpt-oss-20b", "max_tokens": 64, "messages": [question], "tools": [SEARCH]}
    return base | changes


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def test_a_search_is_run_and_shown_as_a_server_tool(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    client = await service(script["search"], OPEN, script["final"])
    answer = (await client.post(PATH, json=body())).json()
    from parts.messages.response_schema import Message

    Message.model_validate(answer)
    call, result, fetch, error, text = answer["content"]
    assert (call["type"], call["name"], call["input"]) == (
        "server_tool_use",
        "web_search",
        {"query": "é"},
    )
    assert (result["type"], result["tool_use_id"]) == ("web_search_tool_result", call["id"])
    assert [link["type"] for link in result["content"]] == ["web_search_result"]
    assert (fetch["name"], fetch["input"]) == ("web_fetch", {"id": "https://a.example/"})
    assert error["content"] == {
        "type": "web_fetch_tool_result_error",
        "error_code": "unavailable",
    }
    assert text["text"] == "It is 4."
    assert answer["stop_reason"] == "end_turn"
    assert answer["usage"]["server_tool_use"] == {
        "web_search_requests": 1,
        "web_fetch_requests": 1,
    }
    prompt = decode_marked(prompts[0].prompt_token_ids)
    assert "## browser" in prompt
    assert TOLD in decode_marked(prompts[1].prompt_token_ids)


async def test_blocks_that_are_sent_back_are_what_the_model_wrote_and_read(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    lookup = {"name": "f", "input_schema": {"type": "object"}}
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    client = await service(script["search"], call, script["final"])
    answer = (await client.post(PATH, json=body(tools=[SEARCH, lookup]))).json()
    used = answer["content"][-1]
    history = [
        *body()["messages"],
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used["id"]}]},
    ]
    again = await client.post(PATH, json=body(messages=history, tools=[SEARCH, lookup]))
    assert again.status_code == 200, again.text
    prompt = decode_marked(prompts[2].prompt_token_ids)
    assert (
        '<|start|>assistant to=browser.search<|channel|>analysis code<|message|>{"query":"é"}'
        f"<|call|><|start|>browser.search to=assistant<|channel|>analysis<|message|>{TOLD}<|end|>"
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>"
    ) in prompt


@pytest.mark.parametrize("step", [1, 100])
async def test_a_stream_has_the_same_blocks(service: Fixture, script: Script, step: int) -> None:
    client = await service(script["search"], script["final"], tokens_per_step=step)
    whole = (await client.post(PATH, json=body())).json()
    events = events_of((await client.post(PATH, json=body(stream=True))).text)
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [start["type"] for start in starts] == [
        "server_tool_use",
        "web_search_tool_result",
        "text",
    ]
    assert starts[0]["input"] == {}
    written = [e["delta"]["partial_json"] for e in events if e.get("index") == 0 and "delta" in e]
    assert json.loads("".join(written)) == {"query": "é"}
    assert not [e for e in events if e.get("index") == 1 and "delta" in e]
    assert starts[1]["content"] == whole["content"][1]["content"]
    stops = [e["index"] for e in events if e["type"] == "content_block_stop"]
    assert stops == [0, 1, 2]
    ending = next(event for event in events if event["type"] == "message_delta")
    assert ending["usage"]["server_tool_use"]["web_search_requests"] == 1


async def test_links_of_a_result_are_listed(service: Fixture) -> None:
    from parts.messages.server_tools import result_block

    text = "L1: 【0†First page†a.example】 …\nL2: 【1†Second†b.example】 …"
    block = result_block("browser.search", "x", '{"query":"q"}', text, has_failed=False)
    assert [(link["title"], link["url"]) for link in block["content"]] == [
        ("First page", "https://a.example/"),
        ("Second", "https://b.example/"),
    ]


async def test_a_search_can_be_forced_as_claude_code_does(
    service: Fixture, script: Script, prompts: list[EngineRequest]
) -> None:
    client = await service(script["search"], script["final"])
    choice = {"type": "tool", "name": "web_search"}
    answer = (await client.post(PATH, json=body(tool_choice=choice))).json()
    assert answer["content"][0]["type"] == "server_tool_use"
    assert "browser.search" in repr(prompts[0].grammar)
    assert "final" not in repr(prompts[0].grammar)


async def test_max_uses_bounds_the_calls(service: Fixture, script: Script) -> None:
    client = await service(*[script["search"]] * 2, script["final"])
    tools = [{**SEARCH, "max_uses": 1}]
    content = (await client.post(PATH, json=body(tools=tools))).json()["content"]
    results = [block["content"] for block in content if block["type"] == "web_search_tool_result"]
    assert results[1] == {"type": "web_search_tool_result_error", "error_code": "unavailable"}


async def test_blocks_and_events_are_of_anthropics_types(service: Fixture, script: Script) -> None:
    from anthropic.types import Message, RawMessageStreamEvent
    from pydantic import TypeAdapter

    client = await service(script["search"], OPEN, script["final"])
    answer = (await client.post(PATH, json=body())).json()
    kinds = [type(block).__name__ for block in Message.model_validate(answer).content]
    assert kinds == [
        "ServerToolUseBlock",
        "WebSearchToolResultBlock",
        "ServerToolUseBlock",
        "WebFetchToolResultBlock",
        "TextBlock",
    ]
    event_of: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for event in events_of((await client.post(PATH, json=body(stream=True))).text):
        if event["type"] != "ping":
            event_of.validate_python(event)
