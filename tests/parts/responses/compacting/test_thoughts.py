"""Thoughts that a client keeps encrypted: read again in a tool loop, by its own tenant alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.runtime import Runtime
from tests.service.remembering import Remembering

Fixture = Callable[..., Any]
Wired = Callable[..., Runtime]

PATH = "/v1/responses"
INCLUDE = {"include": ["reasoning.encrypted_content"], "store": False}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
ASKS = {"role": "user", "content": "Hi"}
THOUGHT = "So."


def loop(sealed: str) -> list[Any]:
    """What Codex sends back: thoughts without their text."""
    thought = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    return [ASKS, thought, CALL, OUTPUT]


async def test_thoughts_come_back_in_a_tool_loop(
    wired: Wired,
    make_client: Fixture,
    body: Fixture,
    typed_events: Fixture,
    model: Remembering,
) -> None:
    client = await make_client(wired())
    answer = (await client.post(PATH, json=body(**INCLUDE))).json()
    sealed = answer["output"][0]["encrypted_content"]
    assert answer["output"][0]["content"][0]["text"] == THOUGHT
    assert "encrypted_content" not in (await client.post(PATH, json=body())).json()["output"][0]
    streamed = await client.post(PATH, json=body(**INCLUDE, stream=True))
    events = typed_events(streamed.text)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    # The same text is sealed alike, so that an item does not change between two events.
    assert [done[0]["encrypted_content"], events[-1]["response"]["output"][0]] == [sealed, done[0]]

    assert (await client.post(PATH, json=body(input=loop(sealed)))).status_code == 200
    assert f"<|channel|>analysis<|message|>{THOUGHT}" in model.prompts[-1]


@pytest.mark.parametrize("sealed", ["gAAAAABoISQ24", "hs1.AAAA", "hs1."])
async def test_those_that_cannot_be_read_say_nothing(
    wired: Wired, make_client: Fixture, body: Fixture, model: Remembering, sealed: str
) -> None:
    client = await make_client(wired())
    assert (await client.post(PATH, json=body(input=loop(sealed)))).status_code == 200
    assert "<|channel|>analysis<|message|>" not in model.prompts[-1]
    assert "42" in model.prompts[-1]


async def test_another_tenants_say_nothing(
    wired: Wired, make_client: Fixture, body: Fixture, named: Fixture, model: Remembering
) -> None:
    client = await make_client(wired(authenticator=named()))
    mine, rival = ({"Authorization": f"Bearer {who}"} for who in ("team-a", "rival-a"))
    answer = (await client.post(PATH, json=body(**INCLUDE), headers=mine)).json()
    sealed = answer["output"][0]["encrypted_content"]
    for headers, is_read in ((mine, True), (rival, False)):
        await client.post(PATH, json=body(input=loop(sealed)), headers=headers)
        assert (THOUGHT in model.prompts[-1]) is is_read
