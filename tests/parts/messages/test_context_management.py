"""What Claude Code asks for unasked: edits of the context, and tools that come later."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from service.harmony.vocabulary import decode_marked
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

Fixture = Callable[..., Any]

PATH = "/v1/messages"
TOOLS = [
    {"name": "search", "input_schema": {"type": "object"}},
    {"name": "fetch", "input_schema": {"type": "object"}, "defer_loading": True},
]
LOOP: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
for _number in range(3):
    LOOP += [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": f"Thought {_number}.", "signature": ""},
                {"type": "tool_use", "id": f"t{_number}", "name": "search", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": f"t{_number}", "content": "x"}],
        },
    ]


@pytest.fixture
async def prompt(make_runtime: Fixture, make_client: Fixture) -> Any:
    """Post a body; give the prompt, whose count the counting route must give too."""
    seen: list[EngineRequest] = []

    def script(request: EngineRequest) -> tuple[int, ...]:
        seen.append(request)
        return (200002,)

    client = await make_client(make_runtime(engine=FakeEngine(FakeOptions(), script)))

    async def post(**body: Any) -> str:
        body = {"model": "gpt-oss-20b", "messages": LOOP, "tools": TOOLS} | body
        response = await client.post(PATH, json={"max_tokens": 9} | body)
        assert response.status_code == 200, response.text
        counted = (await client.post(f"{PATH}/count_tokens", json=body)).json()["input_tokens"]
        assert counted == len(seen[-1].prompt_token_ids)
        return decode_marked(seen[-1].prompt_token_ids)

    return post


@pytest.mark.parametrize(
    ("management", "kept"),
    [
        (None, [0, 1, 2]),
        ({}, [0, 1, 2]),
        ({"edits": []}, [0, 1, 2]),
        ({"edits": [{"keep": "all"}]}, [0, 1, 2]),
        ({"edits": [{"keep": {"type": "all"}}]}, [0, 1, 2]),
        ({"edits": [{"keep": {"type": "thinking_turns", "value": 2}}]}, [1, 2]),
        ({"edits": [{"keep": {"type": "thinking_turns", "value": 9}}]}, [0, 1, 2]),
        ({"edits": [{}]}, [2]),
    ],
)
async def test_thoughts_are_cleared_as_asked(
    prompt: Fixture, management: Any, kept: list[int]
) -> None:
    edits = [
        edit | {"type": "clear_thinking_20251015"} for edit in (management or {}).get("edits", ())
    ]
    given = management and management | {"edits": edits}
    text = await prompt(context_management=given)
    assert [n for n in range(3) if f"Thought {n}." in text] == kept


EDIT = {"type": "clear_thinking_20251015"}
FINAL = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Again."}]


async def _said(client: Any, history: list[dict[str, Any]], **edits: Any) -> list[Any]:
    """What the answer, its stream and the counting route say of the edits."""
    body = {"model": "gpt-oss-20b", "messages": history, "tools": TOOLS, **edits}
    whole = (await client.post(PATH, json={"max_tokens": 9, **body})).json()
    stream = await client.post(PATH, json={"max_tokens": 9, "stream": True, **body})
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line[:6] == "data: "]
    (last,) = [event for event in events if event["type"] == "message_delta"]
    counted = (await client.post(f"{PATH}/count_tokens", json=body)).json()
    return [whole.get("context_management"), last.get("context_management"), counted]


@pytest.mark.parametrize(("history", "num_turns"), [(LOOP, 2), ([*LOOP, *FINAL], 0)])
async def test_what_was_cleared_is_said(
    make_runtime: Fixture, make_client: Fixture, history: list[dict[str, Any]], num_turns: int
) -> None:
    client = await make_client(make_runtime("<|return|>"))
    whole, streamed, counted = await _said(client, history, context_management={"edits": [EDIT]})
    *_, original = await _said(client, history)
    num_tokens = original["input_tokens"] - counted["input_tokens"]
    assert (num_tokens > 0) is (num_turns > 0)
    cleared = {"cleared_thinking_turns": num_turns, "cleared_input_tokens": num_tokens}
    assert whole == streamed == {"applied_edits": [EDIT | cleared] if num_turns else []}
    assert counted["context_management"] == {"original_input_tokens": original["input_tokens"]}


async def test_nothing_is_said_of_edits_that_nobody_asked_for(
    make_runtime: Fixture, make_client: Fixture
) -> None:
    client = await make_client(make_runtime("<|return|>"))
    whole, streamed, counted = await _said(client, LOOP)
    assert whole is streamed is None
    assert list(counted) == ["input_tokens"]


@pytest.mark.parametrize("kind", ["clear_tool_uses_20250919", "compact_20300101"])
async def test_other_edits_are_refused_by_name(
    make_runtime: Fixture, make_client: Fixture, kind: str
) -> None:
    client = await make_client(make_runtime("<|return|>"))
    body = {
        "model": "gpt-oss-20b",
        "messages": LOOP,
        "context_management": {"edits": [{"type": kind}]},
    }
    for path, extra in ((PATH, {"max_tokens": 9}), (f"{PATH}/count_tokens", {})):
        response = await client.post(path, json=body | extra)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["details"]["param"] == "context_management.edits[0]"
        assert kind in error["message"]


async def test_a_deferred_tool_is_offered_once_a_search_has_found_it(prompt: Fixture) -> None:
    assert "type fetch" not in await prompt()
    found = [{"type": "tool_reference", "tool_name": name} for name in ("fetch", "gone")]
    messages = [
        *LOOP[:2],
        {"role": "user", "content": [LOOP[2]["content"][0] | {"content": found}]},
    ]
    text = await prompt(messages=messages)
    assert "type fetch" in text
    assert "type gone" not in text
    assert "These tools can be called now: fetch, gone." in text


async def test_tools_come_and_go_with_the_messages(prompt: Fixture) -> None:
    def change(kind: str, tool: dict[str, Any]) -> dict[str, Any]:
        return {"role": "system", "content": [{"type": kind, "tool": tool}]}

    by_name = {"type": "tool_reference", "name": "fetch"}
    new = {
        "type": "tool_definition",
        "definition": {"name": "draw", "input_schema": {"type": "object"}},
    }
    added = [*LOOP, change("tool_addition", by_name), change("tool_addition", new)]
    text = await prompt(messages=added)
    assert "type fetch" in text
    assert "type draw" in text
    removed = [*added, change("tool_removal", by_name)]
    text = await prompt(messages=removed)
    assert "type fetch" not in text
    assert "type draw" in text
