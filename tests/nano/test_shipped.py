"""The weights that ship: what a user's first requests get, and held-out dialogues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from nano.about import UNKNOWN, intents
from nano.dialogues import Turn
from nano.judge import Verdict, Written, parse
from nano.report import ROWS, generate, held_out_turns, measure, share
from profiles.compact import bundled_nano, expand
from service.harmony.types import Conversation, Message, Tool, ToolCall

# What the model is meant to reach and does.
BARS = {"answer repeats the tool's result": 0.9}
# What must not get worse: a little below what docs/nano.md measured.
FLOORS = {
    "valid Harmony": 0.95,
    "right tool, arguments fit its schema": 0.7,
    "arguments exactly right": 0.6,
}
# What the model is meant to reach, and why it does not.
NOT_YET = {
    "valid Harmony": (0.99, "at times calls a tool that is not on offer"),
    "right tool, arguments fit its schema": (
        0.95,
        "takes one unseen tool for another, or says that none fits",
    ),
    "arguments exactly right": (0.9, "and takes the wrong words as a value"),
}
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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "nano"
    expand(bundled_nano(), folder)
    return folder


@pytest.fixture(scope="module")
def verdicts(checkpoint: Path) -> list[Verdict]:
    return asyncio.run(measure(checkpoint, held_out_turns(60, seed=101), temperature=0.0))


def _share(verdicts: list[Verdict], name: str) -> float:
    reached, count = share(verdicts, next(row for row in ROWS if row.name == name))
    assert count >= 20
    return reached


@pytest.mark.parametrize("name", BARS)
def test_held_out_dialogues_reach_the_bars(verdicts: list[Verdict], name: str) -> None:
    assert _share(verdicts, name) >= BARS[name]


@pytest.mark.parametrize("name", FLOORS)
def test_held_out_dialogues_do_not_get_worse(verdicts: list[Verdict], name: str) -> None:
    assert _share(verdicts, name) >= FLOORS[name]


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        pytest.param(name, bar, marks=pytest.mark.xfail(reason=reason, strict=False), id=name)
        for name, (bar, reason) in NOT_YET.items()
    ],
)
def test_held_out_dialogues_reach_what_they_should(
    verdicts: list[Verdict], name: str, bar: float
) -> None:
    assert _share(verdicts, name) >= bar


def test_reasoning_is_longer_at_higher_effort(verdicts: list[Verdict]) -> None:
    def mean(effort: str) -> float:
        words = [v.num_reasoning_words for v in verdicts if v.effort == effort]
        return sum(words) / len(words)

    assert mean("low") < mean("medium") < mean("high")


def _prompt(*messages: Message, tools: tuple[Tool, ...] = ()) -> Conversation:
    return Conversation(messages, "2026-01-31", tools)


CALL = ToolCall("call_1", "get_weather", '{"location": "Paris"}')
FIRST_REQUESTS = {
    "hello": _prompt(Message("user", "Hello!")),
    "what": _prompt(Message("user", "What are you?")),
    "unknown": _prompt(Message("user", "Who wrote Hamlet?")),
    "weather": _prompt(Message("user", "What is the weather in Paris?"), tools=(WEATHER,)),
    "result": _prompt(
        Message("user", "What is the weather in Paris?"),
        Message("assistant", tool_calls=(CALL,)),
        Message("tool", '{"temperature": 21, "condition": "sunny"}', tool_call_id="call_1"),
        tools=(WEATHER,),
    ),
}


@pytest.fixture(scope="module")
def answers(checkpoint: Path) -> dict[str, Written]:
    async def ask_all() -> dict[str, Written]:
        engine = NativeEngine(NativeConfig(checkpoint))
        await engine.start()
        found = {}
        for name, prompt in FIRST_REQUESTS.items():
            turn = Turn("first", prompt, reply=())
            found[name] = parse(turn, *await generate(engine, turn, temperature=0.0))
        await engine.stop()
        return found

    return asyncio.run(ask_all())


@pytest.mark.parametrize("name", FIRST_REQUESTS)
def test_first_requests_get_clean_replies(answers: dict[str, Written], name: str) -> None:
    assert answers[name].is_clean
    assert answers[name].reasoning


def test_first_questions_get_the_right_answers(answers: dict[str, Written]) -> None:
    told = {intent.name: intent.answer for intent in intents()}
    assert answers["hello"].content == told["greeting"]
    assert answers["what"].content == told["who"]
    assert answers["unknown"].content == UNKNOWN


def test_a_first_request_calls_the_tool(answers: dict[str, Written]) -> None:
    assert answers["weather"].calls == (("get_weather", '{"location":"Paris"}'),)


def test_a_first_result_is_repeated(answers: dict[str, Written]) -> None:
    assert "21" in answers["result"].content
    assert "sunny" in answers["result"].content
