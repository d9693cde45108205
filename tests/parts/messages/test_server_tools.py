"""Tools of Anthropic's servers: declared without a browser, and in histories that began there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/messages"
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
LATER = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}


@pytest.fixture
async def ask(make_runtime: Fixture, make_client: Fixture, message_body: Fixture) -> Any:
    """Post a body; give the prompt that reached the engine."""
    seen: list[EngineRequest] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        return (200002,)

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))

    async def post(**changes: Any) -> str:
        response = await client.post(PATH, json=message_body(**changes))
        assert response.status_code == 200, response.text
        counted = message_body(**changes)
        counted.pop("max_tokens")
        count = await client.post(f"{PATH}/count_tokens", json=counted)
        assert count.json()["input_tokens"] == len(seen[-1].prompt_token_ids)
        return decode_marked(seen[-1].prompt_token_ids)

    return post


@pytest.mark.parametrize(
    "tool",
    [
        SEARCH,
        {"type": "web_search_20260318", "name": "web_search", "max_uses": 3},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ],
)
@pytest.mark.parametrize("choice", [None, {"type": "any"}, "named", {"type": "none"}])
async def test_a_servers_tool_is_taken_and_not_offered_without_one(
    ask: Fixture, tool: dict[str, Any], choice: Any
) -> None:
    """claude-code's WebSearch: a request of its own, with nothing but this tool."""
    given = {"type": "tool", "name": tool["name"]} if choice == "named" else choice
    plain = await ask()
    assert await ask(tools=[tool], tool_choice=given) == plain


@pytest.mark.parametrize("kind", ["regex_20251119", "bm25_20251119"])
async def test_deferred_tools_are_offered_where_the_server_was_to_search(
    ask: Fixture, kind: str
) -> None:
    search = {"type": f"tool_search_tool_{kind}", "name": "tool_search_tool"}
    assert "type later" not in await ask(tools=[LATER])
    assert "type later" in await ask(tools=[LATER, search])


RESULTS = [
    (
        "web_search",
        "web_search_tool_result",
        [
            {
                "type": "web_search_result",
                "title": "A page",
                "url": "https://a.example/x",
                "encrypted_content": "EqgfCioIARgB",
                "page_age": None,
            }
        ],
        "A page\nhttps://a.example/x",
    ),
    (
        "web_search",
        "web_search_tool_result",
        {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
        "Error: max_uses_exceeded",
    ),
    (
        "web_fetch",
        "web_fetch_tool_result",
        {
            "type": "web_fetch_result",
            "url": "https://a.example/",
            "content": {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "Words."},
            },
        },
        "https://a.example/\nWords.",
    ),
    (
        "bash_code_execution",
        "bash_code_execution_tool_result",
        {
            "type": "bash_code_execution_result",
            "stdout": "a\n",
            "stderr": "b",
            "return_code": 2,
            "content": [],
        },
        "a\nb\n[exit code 2]",
    ),
    (
        "text_editor_code_execution",
        "text_editor_code_execution_tool_result",
        {"type": "text_editor_code_execution_view_result", "content": "x = 1", "file_type": "text"},
        "x = 1",
    ),
    (
        "code_execution",
        "code_execution_tool_result",
        {"type": "encrypted_code_execution_result", "encrypted_stdout": "xx", "return_code": 0},
        "[code_execution_tool_result: nothing that this model can read]",
    ),
]


@pytest.mark.parametrize(("name", "kind", "content", "told"), RESULTS)
async def test_what_another_servers_tool_did_is_read(
    ask: Fixture, name: str, kind: str, content: Any, told: str
) -> None:
    """kiro-gateway#177, oh-my-pi#6496: a session that moves here goes on."""
    blocks = [
        {"type": "text", "text": "A moment."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": name, "input": {"a": 1}},
        {"type": kind, "tool_use_id": "srvtoolu_1", "content": content},
        {"type": "text", "text": "So.", "citations": [{"type": "web_search_result_location"}]},
    ]
    prompt = await ask(
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": "And?"},
        ]
    )
    assert (
        "<|channel|>commentary<|message|>A moment.<|end|><|start|>assistant to=functions."
        f'{name}<|channel|>commentary json<|message|>{{"a":1}}<|call|><|start|>functions.{name} '
        f"to=assistant<|channel|>commentary<|message|>{told}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>So.<|end|>"
    ) in prompt


async def test_a_connectors_call_and_blocks_without_words_are_taken(ask: Fixture) -> None:
    blocks = [
        {"type": "mcp_tool_use", "id": "m", "name": "ask", "server_name": "x", "input": {}},
        {
            "type": "mcp_tool_result",
            "tool_use_id": "m",
            "is_error": True,
            "content": [{"type": "text", "text": "gone"}],
        },
        {"type": "container_upload", "file_id": "f"},
        {"type": "web_search_tool_result", "tool_use_id": "cut out", "content": []},
        {"type": "text", "text": "So."},
    ]
    prompt = await ask(
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": "And?"},
        ]
    )
    assert "<|message|>Error: gone<|end|><|start|>assistant<|channel|>final<|message|>So." in prompt


async def test_tools_that_another_server_found_are_offered(ask: Fixture) -> None:
    reference = {"type": "tool_reference", "tool_name": "later"}
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "tool_search_tool_regex", "input": {}},
        {
            "type": "tool_search_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "tool_search_tool_search_result",
                "tool_references": [reference],
            },
        },
        {"type": "text", "text": "Found."},
    ]
    prompt = await ask(
        tools=[LATER],
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": "Go on"},
        ],
    )
    assert "type later" in prompt
    assert "These tools can be called now: later." in prompt
