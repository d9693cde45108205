"""The openai SDK's responses on nano: their shape, not how well nano answers."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

LIMIT = 96  # nano may not end by itself
ENDS = {"completed": "response.completed", "incomplete": "response.incomplete"}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Weather(BaseModel):
    is_sunny: bool
    wind: Literal["none", "some", "strong"]


@pytest.fixture
def ask(model: str) -> dict[str, Any]:
    return {"model": model, "input": "Hello!", "temperature": 0, "max_output_tokens": LIMIT}


def written(response: Any) -> list[tuple[str, str]]:
    """What the items say, without their ids."""
    texts = []
    for item in response.output:
        parts = item.content if item.type in ("message", "reasoning") else []
        said = "".join(part.text for part in parts) or getattr(item, "arguments", "")
        assert "<|" not in said
        texts.append((item.type, said))
    return texts


def test_a_stream_is_the_whole_response_in_typed_events(
    client: OpenAI, ask: dict[str, Any]
) -> None:
    whole = client.responses.create(**ask)
    events = list(client.responses.create(**ask, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    final: Any = events[-1]
    assert final.type == ENDS[final.response.status]
    assert final.response.status == whole.status
    assert written(final.response) == written(whole)
    assert whole.output
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    done = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert added == done == [item.id for item in final.response.output]
    deltas = [event.delta for event in events if event.type.endswith("_text.delta")]
    assert "".join(deltas) == "".join(text for _, text in written(whole))
    usage, streamed = whole.usage, final.response.usage
    assert usage is not None
    assert 0 < usage.output_tokens <= LIMIT
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (streamed.input_tokens, streamed.output_tokens) == (
        usage.input_tokens,
        usage.output_tokens,
    )


def test_a_conversation_is_kept_and_forgotten(client: OpenAI, ask: dict[str, Any]) -> None:
    first = client.responses.create(**ask)
    second = client.responses.create(**ask | {"previous_response_id": first.id, "input": "More?"})
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    kept = client.responses.retrieve(first.id)
    assert written(kept) == written(first)
    (item,) = client.responses.input_items.list(first.id).data
    assert item.type == "message"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match=first.id):
        client.responses.create(**ask | {"previous_response_id": first.id})


def test_a_background_response_can_be_cancelled(client: OpenAI, ask: dict[str, Any]) -> None:
    endless = {"logit_bias": {"200002": -100, "200007": -100, "200012": -100}}
    begun = client.responses.create(
        **ask | {"max_output_tokens": 2000}, background=True, extra_body=endless
    )
    assert begun.status == "queued"
    ended = client.responses.cancel(begun.id)
    assert ended.status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"


def test_formats_and_forced_calls_are_kept_to(client: OpenAI, ask: dict[str, Any]) -> None:
    parsed = client.responses.parse(
        **ask | {"max_output_tokens": 400},
        text_format=Weather,
        extra_body={"thinking_token_budget": 32},
    )
    assert parsed.status == "completed", "the schema bounds the answer, the budget the thoughts"
    assert isinstance(parsed.output_parsed, Weather)
    called = client.responses.create(
        **ask | {"max_output_tokens": 400},
        tools=[WEATHER],
        tool_choice="required",
        extra_body={"thinking_token_budget": 32},
    )
    call = called.output[-1]
    if called.status == "completed":  # else a preamble took all tokens
        assert call.type == "function_call"
        assert call.name == "get_weather"
        assert set(json.loads(call.arguments)) == {"city"}
