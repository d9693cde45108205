"""The real anthropic SDK on nano: the shape of its messages, not how well nano answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from anthropic import Anthropic

    from tests.e2e.conftest import Server

pytestmark = pytest.mark.slow  # tests/parts/messages has the SDK use a scripted model

LIMIT = 400  # of which thoughts may take 96
ENDS = {"end_turn", "max_tokens", "model_context_window_exceeded"}
THINKING: Any = {"type": "enabled", "budget_tokens": 96}
WEATHER: Any = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def claude(server: Server) -> Iterator[Anthropic]:
    from anthropic import Anthropic  # a second and more: not for all who collect

    with Anthropic(base_url=server.url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(model: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello!"}]
    greedy = {"temperature": 0}  # the SDK's own models no longer take it
    return {"model": model, "messages": messages, "max_tokens": LIMIT, "extra_body": greedy}


def written(message: Any) -> list[tuple[str, str]]:
    return [
        (block.type, block.text if block.type == "text" else block.thinking)
        for block in message.content
    ]


def test_a_stream_is_the_whole_message(claude: Anthropic, ask: dict[str, Any]) -> None:
    whole = claude.messages.create(**ask, thinking=THINKING)
    with claude.messages.stream(**ask, thinking=THINKING) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert kinds.index("message_delta") > max(
        place for place, kind in enumerate(kinds) if kind == "content_block_stop"
    )
    assert written(final) == written(whole)
    assert whole.content
    assert not any("<|" in text for _, text in written(whole))
    assert whole.stop_reason in ENDS
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens > 0


def test_a_count_is_what_the_message_uses(claude: Anthropic, ask: dict[str, Any]) -> None:
    message = claude.messages.create(**ask | {"max_tokens": 8})
    usage = message.usage
    assert usage.output_tokens <= 8
    count = claude.messages.count_tokens(model=ask["model"], messages=ask["messages"])
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_forced_tool_is_called_with_its_schema(claude: Anthropic, ask: dict[str, Any]) -> None:
    choice: Any = {"type": "tool", "name": "get_weather"}
    message = claude.messages.create(**ask, thinking=THINKING, tools=[WEATHER], tool_choice=choice)
    assert {block.type for block in message.content} <= {"thinking", "text", "tool_use"}
    if message.stop_reason == "tool_use":  # else a preamble took all tokens
        call = message.content[-1]
        assert call.type == "tool_use"
        assert call.name == "get_weather"
        assert set(call.input) == {"city"}


def test_errors_are_the_sdks_own(claude: Anthropic, ask: dict[str, Any]) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError, match="gpt-17"):
        claude.messages.create(**ask | {"model": "gpt-17"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.messages.create(**ask | {"max_tokens": 0})
