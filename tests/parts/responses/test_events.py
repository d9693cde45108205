"""The events of a streamed response: complete, in order, numbered, and the same as the whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from parts.responses.schemas.response import ResponseObject
from parts.responses.serving import SERVING
from service.settings.settings import load

Fixture = Callable[..., Any]

PATH = "/v1/responses"

# Each event that opens something, and the one that closes it.
PAIRS = {
    "response.created": ("response.completed", "response.incomplete", "response.failed"),
    "response.output_item.added": ("response.output_item.done",),
    "response.content_part.added": ("response.content_part.done",),
    "response.output_text.delta": ("response.output_text.done",),
    "response.reasoning_text.delta": ("response.reasoning_text.done",),
    "response.function_call_arguments.delta": ("response.function_call_arguments.done",),
}
TWO_CALLS = (
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    '<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"a": 2}<|call|>'
)
BETWEEN = (
    "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "Pre.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|><|start|>assistant"
    "<|channel|>final<|message|>End.<|return|>"
)


def check_order(events: list[dict[str, Any]]) -> None:
    """Numbers without a gap; what is opened is closed before its neighbour opens."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] in PAIRS["response.created"]
    open_item, num_items = None, 0
    opened: list[str] = []
    for event in events[2:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert not opened
            assert event["output_index"] == num_items
            num_items, open_item = num_items + 1, event["item"]
        assert open_item is not None
        assert event["output_index"] == num_items - 1
        assert event.get("item_id", open_item["id"]) == open_item["id"]
        assert event.get("content_index", 0) == 0
        if kind in PAIRS and kind not in opened:
            opened.append(kind)
        elif kind not in PAIRS:
            assert kind in PAIRS[opened.pop()]
    assert not opened


def added_up(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client builds them from deltas alone."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            items.append({"type": event["item"]["type"], "text": "", "logprobs": []})
        elif kind.endswith(".delta"):
            items[-1]["text"] += event["delta"]
            items[-1]["logprobs"] += event.get("logprobs", [])
        elif kind in ("response.output_text.done", "response.reasoning_text.done"):
            assert event["text"] == items[-1]["text"]
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == items[-1]["text"]
    return items


def flat(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "function_call":
        return {"type": item["type"], "text": item["arguments"], "logprobs": []}
    (part,) = item["content"]
    return {"type": item["type"], "text": part["text"], "logprobs": part.get("logprobs", [])}


@pytest.mark.parametrize("step", [1, 3, 8, 100])
@pytest.mark.parametrize(
    ("script", "changes", "kinds"),
    [
        ("hello", {}, ["reasoning", "message"]),
        ("hello", {"top_logprobs": 2}, ["reasoning", "message"]),
        ("hello", {"include": ["message.output_text.logprobs"]}, ["reasoning", "message"]),
        ("hello", {"stop": "🚀"}, ["reasoning", "message"]),
        ("hello", {"max_output_tokens": 9}, ["reasoning"]),
        ("hello", {"max_output_tokens": 1}, []),
        ("call", {}, ["reasoning", "message", "function_call"]),
        (TWO_CALLS, {}, ["function_call"]),
        (TWO_CALLS.replace("<|call|>", "<|end|>", 1), {}, ["function_call"] * 2),
        (BETWEEN, {}, ["reasoning", "message", "reasoning", "message"]),
        ("no header at all<|return|>", {}, ["message"]),
        ("<|channel|>commentary<|message|>Only a preamble.<|return|>", {}, ["message"]),
    ],
)
async def test_a_stream_is_complete_ordered_and_adds_up_to_the_whole(
    make_runtime: Fixture,
    make_client: Fixture,
    body: Fixture,
    typed_events: Fixture,
    request: pytest.FixtureRequest,
    tool: dict[str, Any],
    step: int,
    script: str,
    changes: dict[str, Any],
    kinds: list[str],
) -> None:
    """Any step size, any number of messages, every event, no loss.

    vllm#24170, vllm#28635, vllm#26291, vllm#22403, sglang#9368, TensorRT-LLM#9256.
    """
    text = request.getfixturevalue(script) if script in ("hello", "call") else script
    changes = {"tools": [tool], "max_output_tokens": 60, **changes}
    client = await make_client(make_runtime(text, tokens_per_step=step))
    whole = (await client.post(PATH, json=body(**changes))).json()
    streamed = await client.post(PATH, json=body(**changes, stream=True))
    events = typed_events(streamed.text)
    check_order(events)
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == kinds
    assert added_up(events) == [flat(item) for item in final["output"]]
    assert [flat(item) for item in whole["output"]] == added_up(events)
    assert final["status"] == whole["status"]
    for response in (final, whole):
        ResponseObject.model_validate(response)
        del response["usage"]["input_tokens_details"]  # the second finds the first's cached
    assert final["usage"] == whole["usage"]
    assert "<|" not in streamed.text


async def test_an_error_in_mid_stream_is_told_twice_and_stored(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, typed_events: Fixture, hello: str
) -> None:
    """vllm#57099: a stream never just breaks off."""
    client = await make_client(make_runtime(hello, fail_at=5))
    response = await client.post(PATH, json=body(stream=True))
    events = typed_events(response.text)
    assert [event["type"] for event in events[-3:]] == [
        "response.output_item.done",
        "error",
        "response.failed",
    ]
    failed = events[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == events[-2]["code"] == "server_error"
    assert "fails after 5" in failed["error"]["message"] == events[-2]["message"]
    assert failed["output"][0]["status"] == "incomplete"
    stored = await client.get(f"{PATH}/{failed['id']}")
    assert stored.json() == failed


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_an_error_before_the_first_event_is_an_ordinary_error(
    make_runtime: Fixture, make_client: Fixture, body: Fixture, hello: str, is_streamed: bool
) -> None:
    client = await make_client(make_runtime(hello, fail_at=0))
    response = await client.post(PATH, json=body(stream=is_streamed))
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "request_failed"


async def test_what_is_cut_says_why_and_keeps_its_part(post: Fixture, hello: str) -> None:
    """BrowseComp-Plus#15, vllm#24561: the partial item comes with the reason."""
    cut = (await post(hello, max_output_tokens=5)).json()
    assert cut["status"] == "incomplete"
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["completed_at"] is None
    (item,) = cut["output"]
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")
    assert item["content"][0]["text"] == "A short"


async def test_a_call_that_is_cut_is_returned(post: Fixture, tool: Any) -> None:
    """lmstudio-bug-tracker#942: truncated arguments are no reason to leave the call out."""
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "a long text"}'
    cut = (await post(call, tools=[tool], max_output_tokens=13)).json()
    (item,) = cut["output"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "f", "incomplete")
    assert item["arguments"].startswith('{"a')
    assert cut["status"] == "incomplete"


@pytest.mark.parametrize("is_background", [False, True])
async def test_open_responses_names_are_given_to_who_asks_for_them(
    make_runtime: Fixture,
    make_client: Fixture,
    body: Fixture,
    typed_events: Fixture,
    hello: str,
    is_background: bool,
) -> None:
    """The specification and OpenAI's SDK name the events of reasoning differently."""
    client = await make_client(make_runtime(hello))
    asked = body(stream=True, background=is_background)
    version = {"OpenResponses-Version": "latest"}

    def types(response: Any) -> list[str]:
        return [json.loads(line[6:])["type"] for line in response.text.splitlines() if "{" in line]

    created = await client.post(PATH, json=asked, headers=version)
    theirs, ours = types(created), types(await client.post(PATH, json=asked))
    for events, name in ((theirs, "response.reasoning."), (ours, "response.reasoning_text.")):
        assert {type for type in events if "reasoning" in type} == {f"{name}delta", f"{name}done"}
    url = f"{PATH}/{re.search(r'resp_[0-9a-f]+', created.text)[0]}"  # type: ignore[index]
    assert types(await client.get(url, params={"stream": True}, headers=version)) == theirs
    assert types(await client.get(url, params={"stream": True})) == ours
    runtime = SERVING.wire(make_runtime(hello), load({"open_responses": True}))
    always = await make_client(runtime)
    assert types(await always.post(PATH, json=asked)) == theirs
