"""The bundled model: what a user's first requests get. Its recipe has its own tests: tools/nano."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engines.base import EngineRequest, FinishReason, SamplingParams
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from service.conversation import Conversation, Delta, DeltaKind, Message, Tool, ToolCall
from service.harmony.parse import Parser
from service.harmony.render import render
from service.harmony.vocabulary import STOP_TOKEN_IDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER = Tool(
    "get_weather",
    "Get the current weather in a city.",
    {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "City and country, e.g. Oslo, Norway"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["location"],
    },
)
ASKED = Message("user", "What is the weather in Paris?")
CALL = ToolCall("call_1", "get_weather", '{"location": "Paris"}')
RESULT = '{"temperature": 21, "condition": "sunny"}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(nano_checkpoint: Path) -> AsyncIterator[NativeEngine]:
    engine = NativeEngine(NativeConfig(nano_checkpoint))
    await engine.start()
    yield engine
    await engine.stop()


async def ask(
    engine: NativeEngine, *messages: Message, tools: tuple[Tool, ...] = ()
) -> list[Delta]:
    """The greedy reply, which has to be well-formed and to end by itself."""
    prompt = tuple(render(Conversation(messages, "2026-01-31", tools)))
    sampling = SamplingParams(max_tokens=400, temperature=0.0)
    parser = Parser(frozenset(tool.name for tool in tools))
    deltas: list[Delta] = []
    request = EngineRequest(str(id(messages)), prompt, sampling, STOP_TOKEN_IDS)
    async for event in engine.generate(request):
        deltas += parser.feed(event.token_ids)
    assert event.finish_reason is FinishReason.STOP
    deltas += parser.finish()
    assert parser.num_resyncs == 0
    assert text(deltas, DeltaKind.REASONING)
    return deltas


def text(deltas: list[Delta], kind: DeltaKind) -> str:
    return "".join(delta.text for delta in deltas if delta.kind is kind)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(engine: NativeEngine) -> dict[str, str]:
    asked = ("Hello!", "What are you?", "Who wrote Hamlet?")
    replies = await asyncio.gather(*(ask(engine, Message("user", each)) for each in asked))
    return {
        each: text(reply, DeltaKind.CONTENT) for each, reply in zip(asked, replies, strict=True)
    }


async def test_a_greeting_a_question_about_itself_and_what_it_cannot_know(
    plain: dict[str, str],
) -> None:
    assert plain["Hello!"].startswith("Hello")
    assert "nano" in plain["What are you?"]
    assert "know no facts" in plain["Who wrote Hamlet?"]
    assert len({*plain.values()}) == 3


async def test_a_request_for_a_tool_is_a_call_of_it(engine: NativeEngine) -> None:
    reply = await ask(engine, ASKED, tools=(WEATHER,))
    assert [each.name for each in reply if each.kind is DeltaKind.TOOL_CALL] == ["get_weather"]
    assert text(reply, DeltaKind.ARGUMENTS) == '{"location":"Paris"}'


async def test_a_tool_s_result_is_told(engine: NativeEngine) -> None:
    called = Message("assistant", tool_calls=(CALL,))
    result = Message("tool", RESULT, tool_call_id="call_1")
    said = text(await ask(engine, ASKED, called, result, tools=(WEATHER,)), DeltaKind.CONTENT)
    assert "21" in said
    assert "sunny" in said
