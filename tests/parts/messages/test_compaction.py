"""Compaction by Anthropic's edit of the context, by its own parameter, and blocks sent back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.compaction import MARK
from service.runtime import Runtime
from tests.service.remembering import SUMMARY, WORD, Remembering

Fixture = Callable[..., Any]
Wired = Callable[..., Runtime]

PATH = "/v1/messages"
TOLD = [
    {"role": "user", "content": f"The code word is {WORD}."},
    {"role": "assistant", "content": "I shall remember it."},
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": "Stormy."},
]
ASKS = {"role": "user", "content": "What is the word?"}
SYSTEM = "Speak like a pirate."


def edit(**changes: Any) -> dict[str, Any]:
    trigger = {"type": "input_tokens", "value": 90}
    return {"edits": [{"type": "compact_20260112", "trigger": trigger} | changes]}


def text(message: Any) -> str:
    return str(message["content"][-1]["text"])


async def test_a_long_conversation_is_compacted_before_it_is_answered(
    wired: Wired, make_client: Fixture, message_body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    asked = message_body(system=SYSTEM, messages=[*TOLD, ASKS], context_management=edit())
    answer = (await client.post(PATH, json=asked)).json()
    block, _ = answer["content"]
    assert (block["type"], block["content"]) == ("compaction", SUMMARY)
    assert WORD not in block["encrypted_content"]
    assert (text(answer), answer["stop_reason"]) == (WORD, "end_turn")
    prompt = model.prompts[-1]
    for kept in (SYSTEM, f"{MARK}:\n\n{SUMMARY}", ASKS["content"]):
        assert kept in prompt
    assert "Stormy" not in prompt
    both = answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"]
    assert both > 200  # both prompts count

    turns = [*TOLD, ASKS, {"role": "assistant", "content": answer["content"]}, ASKS]
    again = (await client.post(PATH, json=message_body(system=SYSTEM, messages=turns))).json()
    assert text(again) == WORD
    assert "Stormy" not in model.prompts[-1]
    assert SYSTEM in model.prompts[-1]

    short = message_body(context_management=edit(trigger=None))
    assert [b["type"] for b in (await client.post(PATH, json=short)).json()["content"]] == ["text"]


async def test_a_stream_has_the_block_first(
    wired: Wired, make_client: Fixture, message_body: Fixture, typed_events: Fixture
) -> None:
    client = await make_client(wired())
    asked = message_body(messages=[*TOLD, ASKS], context_management=edit(), stream=True)
    events = typed_events((await client.post(PATH, json=asked)).text)
    assert [(e["type"], e.get("index")) for e in events if e["type"] != "ping"][:6] == [
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
    ]
    delta = next(e["delta"] for e in events if e["type"] == "content_block_delta")
    assert (delta["type"], delta["content"]) == ("compaction_delta", SUMMARY)
    assert delta["encrypted_content"].startswith("hs1.")


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "wish",
    [
        {"context_management": edit(pause_after_compaction=True)},
        {"compaction": {"type": "summarize"}},
        {"compaction": {"type": "summarize", "instructions": " "}},
    ],
    ids=["pause", "summarize", "blank instructions"],
)
async def test_the_compaction_alone_ends_the_message(
    wired: Wired,
    make_client: Fixture,
    message_body: Fixture,
    typed_events: Fixture,
    wish: Any,
    is_streamed: bool,
) -> None:
    client = await make_client(wired())
    asked = message_body(messages=[*TOLD, ASKS], stream=is_streamed) | wish
    response = await client.post(PATH, json=asked)
    if is_streamed:
        events = typed_events(response.text)
        assert events[-1]["type"] == "message_stop"
        ending = next(e for e in events if e["type"] == "message_delta")
        assert ending["delta"]["stop_reason"] == "compaction"
        assert ending["usage"]["output_tokens"] > 0
        (delta,) = (e["delta"] for e in events if e["type"] == "content_block_delta")
        block = {**delta, "type": "compaction"}
    else:
        message = response.json()
        assert message["stop_reason"] == "compaction"
        assert message["usage"]["output_tokens"] > 0
        (block,) = message["content"]
    assert block["content"] == SUMMARY
    turns = [{"role": "assistant", "content": [block]}, ASKS]
    assert text((await client.post(PATH, json=message_body(messages=turns))).json()) == WORD


async def test_own_instructions_replace_the_servers(
    wired: Wired, make_client: Fixture, message_body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    wish = {"type": "summarize", "instructions": "Name the word alone."}
    await client.post(PATH, json=message_body(messages=TOLD, compaction=wish))
    assert "Name the word alone." in model.prompts[-1]
    assert "Write a summary" not in model.prompts[-1]


async def test_a_running_tool_loop_is_kept_whole(
    wired: Wired, make_client: Fixture, message_body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sky"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "a red moon"}
    turns = [
        *TOLD,
        ASKS,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    asked = message_body(messages=turns, tools=tools, context_management=edit())
    answer = (await client.post(PATH, json=asked)).json()
    assert "a red moon" in model.prompts[-1]
    assert "a red moon" not in model.prompts[-2]
    turns = [*turns, {"role": "assistant", "content": answer["content"]}, ASKS]
    await client.post(PATH, json=message_body(messages=turns, tools=tools))
    prompt = model.prompts[-1]
    assert "a red moon" in prompt
    assert '{"at":"sky"}' in prompt
    assert "Stormy" not in prompt


@pytest.mark.parametrize(
    "block",
    [
        {"content": "A plain summary."},
        {"content": "A summary.", "encrypted_content": "hs1.AAAA"},
        {"content": "A summary.", "encrypted_content": "foreign"},
    ],
)
async def test_a_block_that_is_not_ours_is_refused(
    wired: Wired, make_client: Fixture, message_body: Fixture, block: Any
) -> None:
    client = await make_client(wired())
    turns = [{"role": "assistant", "content": [{"type": "compaction", **block}]}, ASKS]
    answer = await client.post(PATH, json=message_body(messages=turns))
    assert answer.status_code == 400
    details = answer.json()["error"]["details"]
    assert details["error_code"] == "invalid_compaction_item"
    assert details["param"] == "messages[0].content[0].encrypted_content"


async def test_a_block_of_a_compaction_that_failed_changes_nothing(
    wired: Wired, make_client: Fixture, message_body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    failed = {"role": "assistant", "content": [{"type": "compaction", "content": None}]}
    answer = await client.post(PATH, json=message_body(messages=[*TOLD, failed, ASKS]))
    assert text(answer.json()) == WORD
    assert "Stormy" in model.prompts[-1]


async def test_without_the_part_both_ways_are_refused(
    make_runtime: Fixture, make_client: Fixture, message_body: Fixture
) -> None:
    client = await make_client(make_runtime("<|channel|>final<|message|>Hi.<|return|>"))
    for wish, param in (
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"context_management": edit()}, "context_management"),
    ):
        asked = message_body(messages=[*TOLD, ASKS]) | wish
        answer = await client.post(PATH, json=asked)
        assert answer.status_code == 400
        assert answer.json()["error"]["details"]["param"] == param
