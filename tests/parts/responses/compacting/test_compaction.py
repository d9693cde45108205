"""Long conversations made short: the route, the trigger, the threshold, what the model reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.compaction import MARK
from service.runtime import Runtime
from tests.parts.responses.socket.conftest import Serve
from tests.service.conftest import OneAdapter
from tests.service.remembering import SUMMARY, WORD, Remembering

Fixture = Callable[..., Any]

PATH, COMPACT = "/v1/responses", "/v1/responses/compact"
TOLD = [
    {"role": "developer", "content": "Speak like a pirate."},
    {"role": "user", "content": f"The code word is {WORD}."},
    {"role": "assistant", "content": "Aye, I shall remember it."},
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": "Stormy."},
]
ASKS = {"role": "user", "content": "What is the word?"}
TRIGGER = {"type": "compaction_trigger"}


def text(response: Any) -> str:
    (message,) = [item for item in response["output"] if item["type"] == "message"]
    return str(message["content"][0]["text"])


async def compacted(client: Any, **changes: Any) -> Any:
    answer = await client.post(COMPACT, json={"model": "gpt-oss-20b", "input": TOLD} | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_fact_is_known_after_the_conversation_was_compacted(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    answer = await compacted(client, instructions="Be brief.")
    assert answer["object"] == "response.compaction"
    *messages, item = answer["output"]
    assert [message["content"][0]["text"] for message in messages] == [
        f"The code word is {WORD}.",
        "What is the weather?",
    ]
    assert {message["role"] for message in messages} == {"user"}
    assert item["type"] == "compaction"
    assert WORD not in item["encrypted_content"]
    assert answer["usage"]["input_tokens"] > 0
    assert answer["usage"]["output_tokens"] > 0

    given = [TOLD[0], *answer["output"], ASKS]
    again = (await client.post(PATH, json=body(input=given))).json()
    assert text(again) == WORD
    prompt = model.prompts[-1]
    assert f"{MARK}:\n\n{SUMMARY}" in prompt
    assert "Speak like a pirate." in prompt
    assert "What is the word?" in prompt
    assert "weather" not in prompt
    assert "Stormy" not in prompt


async def test_conversations_with_an_adapter_are_compacted_too(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture
) -> None:
    client = await make_client(replace(wired(), adapters=OneAdapter()))
    item = (await compacted(client, model="french"))["output"][-1]
    given = {"model": "french", "input": [item, ASKS]}
    assert text((await client.post(PATH, json=body(**given))).json()) == WORD


async def test_of_several_compactions_the_last_counts(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    first = (await compacted(client))["output"][-1]
    model.summary = "A later summary."
    second = (await compacted(client, input=[first, ASKS]))["output"][-1]
    assert SUMMARY in model.prompts[-1]
    answer = (await client.post(PATH, json=body(input=[first, second, ASKS]))).json()
    assert text(answer) == "unknown"
    assert "A later summary." in model.prompts[-1]
    assert SUMMARY not in model.prompts[-1]


async def test_a_running_tool_loop_is_kept_whole(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"sky"}'}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "I look."}]}
    output = {"type": "function_call_output", "call_id": "c1", "output": "a red moon"}
    answer = await compacted(client, input=[*TOLD, ASKS, thought, call, output])
    assert "a red moon" not in model.prompts[-1]
    item = answer["output"][-1]
    await client.post(PATH, json=body(input=[item]))
    prompt = model.prompts[-1]
    for kept in (SUMMARY, "I look.", '{"at":"sky"}', "a red moon"):
        assert kept in prompt


async def test_a_conversation_longer_than_the_context_is_compacted_too(
    wired: Callable[..., Runtime], make_client: Fixture, model: Remembering
) -> None:
    client = await make_client(wired(max_model_len=4096))
    long = [{"role": "user", "content": f"{number} " + "word " * 500} for number in range(20)]
    answer = await compacted(client, input=[TOLD[0], *long])
    assert len(answer["output"]) == 21
    assert "Speak like a pirate." in model.prompts[-1]
    assert "19 word" in model.prompts[-1]
    assert "0 word word" not in model.prompts[-1].replace("10 word word", "")


async def test_a_stored_conversation_is_compacted_by_its_id(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture
) -> None:
    client = await make_client(wired())
    stored = (await client.post(PATH, json=body(input=TOLD))).json()["id"]
    answer = await client.post(COMPACT, json={"previous_response_id": stored})
    assert [item["type"] for item in answer.json()["output"]] == ["message"] * 2 + ["compaction"]


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"model": 1}, "invalid_value", "model"),
        ({"model": "other"}, "model_not_found", "model"),
        ({"input": ""}, "invalid_request", "input"),
        ({"nonsense": 1}, "unknown_parameter", "nonsense"),
    ],
)
async def test_what_cannot_be_compacted_is_refused(
    wired: Callable[..., Runtime], make_client: Fixture, changes: Any, code: str, param: str
) -> None:
    client = await make_client(wired())
    answer = await client.post(COMPACT, json={"model": "gpt-oss-20b", "input": TOLD} | changes)
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)


async def test_an_item_that_is_foreign_altered_or_anothers_is_refused(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture, named: Fixture
) -> None:
    client = await make_client(wired(authenticator=named()))
    mine, rival = ({"Authorization": f"Bearer {who}"} for who in ("team-a", "rival-a"))
    answer = await client.post(COMPACT, json={"model": "gpt-oss-20b", "input": TOLD}, headers=mine)
    sealed = answer.json()["output"][-1]["encrypted_content"]
    altered = sealed[:-8] + ("A" if sealed[-8] != "A" else "B") + sealed[-7:]
    for headers, text_of in ((mine, altered), (mine, "a plain summary"), (rival, sealed)):
        item = {"type": "compaction", "encrypted_content": text_of}
        refused = await client.post(PATH, json=body(input=[item, ASKS]), headers=headers)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "invalid_compaction_item")
        assert error["param"] == "input[0].encrypted_content"
    item = {"type": "compaction", "encrypted_content": sealed}
    mates = {"Authorization": "Bearer team-b"}  # of the same tenant
    assert (await client.post(PATH, json=body(input=[item]), headers=mates)).status_code == 200


async def test_a_trigger_gives_one_item_and_nothing_else(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture, typed_events: Fixture
) -> None:
    client = await make_client(wired())
    asked = body(input=[*TOLD, TRIGGER], stream=True)
    events = typed_events((await client.post(PATH, json=asked)).text)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(6))
    response = events[-1]["response"]
    (item,) = response["output"]
    assert events[-2]["item"] == item
    assert events[3]["item_id"] == item["id"] == events[2]["item"]["id"]
    assert response["usage"]["output_tokens"] > 0

    kept = (await client.get(f"{PATH}/{response['id']}")).json()
    assert kept == response
    follow = body(input=[ASKS], previous_response_id=response["id"])
    assert text((await client.post(PATH, json=follow)).json()) == WORD
    shown = await client.get(f"{PATH}/{response['id']}", params={"stream": "true"})
    assert typed_events(shown.text) == events
    whole = (await client.post(PATH, json=body(input=[*TOLD, TRIGGER]))).json()
    assert [item["type"] for item in whole["output"]] == ["compaction"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"input": [TRIGGER, ASKS]}, "input[0]"), ({"background": True}, "background")],
)
async def test_a_trigger_elsewhere_is_refused(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture, changes: Any, param: str
) -> None:
    client = await make_client(wired())
    refused = await client.post(PATH, json=body(**({"input": [*TOLD, TRIGGER]} | changes)))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_long_prompt_is_compacted_before_it_is_answered(
    wired: Callable[..., Runtime],
    make_client: Fixture,
    body: Fixture,
    typed_events: Fixture,
    model: Remembering,
) -> None:
    client = await make_client(wired())
    edit = {"type": "compaction", "compact_threshold": 150}
    short = (await client.post(PATH, json=body(context_management=[edit]))).json()
    assert [item["type"] for item in short["output"]] == ["reasoning", "message"]
    asked = body(input=[*TOLD, ASKS], context_management=[edit], stream=True)
    asked["context_management"] = [{"type": "compaction", "compact_threshold": 90}]
    events = typed_events((await client.post(PATH, json=asked)).text)
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["compaction", "reasoning", "message"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == [0, 1, 2]
    assert SUMMARY in model.prompts[-1]
    assert "Stormy" not in model.prompts[-1]
    assert ASKS["content"] in model.prompts[-1]  # the question itself is kept
    # Both prompts count.
    assert response["usage"]["input_tokens"] > 200
    given = [*TOLD, ASKS, *response["output"], ASKS]
    assert text((await client.post(PATH, json=body(input=given))).json()) == WORD
    assert "Stormy" not in model.prompts[-1]


async def test_one_long_question_is_answered_and_not_summarized(
    wired: Callable[..., Runtime], make_client: Fixture, body: Fixture
) -> None:
    client = await make_client(wired())
    edit = {"type": "compaction", "compact_threshold": 90}
    asked = body(input=[TOLD[0], {"role": "user", "content": "word " * 300}])
    answer = (await client.post(PATH, json=asked | {"context_management": [edit]})).json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]


async def test_over_a_websocket_a_chain_begins_with_what_was_compacted(
    wired: Callable[..., Runtime], serve: Serve, make_client: Fixture
) -> None:
    runtime = wired()
    client = await (await serve(runtime)).open()
    events = await client.turn(input=[*TOLD, TRIGGER])
    assert [event["type"] for event in events][2:5] == [
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
    ]
    response = events[-1]["response"]
    held = (await client.turn(input=[ASKS], previous_response_id=response["id"]))[-1]
    assert text(held["response"]) == WORD
    new = (await client.turn(input=[*response["output"], ASKS]))[-1]
    assert text(new["response"]) == WORD


async def test_without_the_part_items_are_refused(
    make_runtime: Fixture, make_client: Fixture, body: Fixture
) -> None:
    client = await make_client(make_runtime("<|channel|>final<|message|>Hi.<|return|>"))
    item = {"type": "compaction", "encrypted_content": "hs1.AAAA"}
    for path, given, status in (
        (PATH, [item, ASKS], 400),
        (PATH, [*TOLD, TRIGGER], 400),
        (COMPACT, TOLD, 404),
    ):
        refused = await client.post(path, json=body(input=given))
        assert refused.status_code == status
        assert "summarizes no history" in refused.json()["error"]["message"]


async def test_a_summary_that_the_model_does_not_write_is_an_error(
    wired: Callable[..., Runtime], make_client: Fixture, model: Remembering
) -> None:
    client = await make_client(wired())
    model.summary = " "
    answer = await client.post(COMPACT, json={"model": "gpt-oss-20b", "input": TOLD})
    assert (answer.status_code, json.loads(answer.text)["error"]["code"]) == (
        500,
        "compaction_failed",
    )
