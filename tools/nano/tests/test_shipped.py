"""The weights that ship: what a user's first requests get, and held-out dialogues (slow)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from profiles.checkpoints.compact import MANIFEST, bundled_nano
from service.conversation import Conversation, Message, Tool, ToolCall
from tools.nano.about import UNKNOWN, intents
from tools.nano.asking import config_for, generate
from tools.nano.dialogues import Turn
from tools.nano.first_messages import is_echo, is_salad, messages
from tools.nano.judge import Verdict, Written, parse
from tools.nano.names import HELD_OUT_CITIES
from tools.nano.others import other_turns
from tools.nano.report import (
    ROWS,
    Measured,
    Row,
    held_out_turns,
    measure,
    page,
    share,
)
from tools.nano.wishes import wish_named

# The first of the dialogues that docs/nano.md reports on; `make nano-report` judges them all.
NUM_DIALOGUES = 50
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
def checkpoint(nano_checkpoint: Path) -> Path:
    return nano_checkpoint


@pytest.fixture(scope="module")
def verdicts(checkpoint: Path) -> list[Verdict]:
    return asyncio.run(
        measure(config_for(checkpoint, "cpu"), held_out_turns(NUM_DIALOGUES), temperature=0.0)
    )


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if row.bar], ids=lambda row: row.name)
def test_held_out_dialogues_reach_the_bars(verdicts: list[Verdict], row: Row) -> None:
    reached, count = share(verdicts, row)
    assert count > 15
    assert reached >= row.bar


@pytest.mark.slow
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
    "line break": _prompt(Message("user", "What can\nyou do?\r\n")),
    "weather": _prompt(Message("user", "What is the weather in Paris?"), tools=(WEATHER,)),
    "result": _prompt(
        Message("user", "What is the weather in Paris?"),
        Message("assistant", tool_calls=(CALL,)),
        Message("tool", '{"temperature": 21, "condition": "sunny"}', tool_call_id="call_1"),
        tools=(WEATHER,),
    ),
}


async def _ask(checkpoint: Path, prompts: Sequence[Conversation]) -> list[Written]:
    turns = [Turn("first", prompt, reply=()) for prompt in prompts]
    engine = NativeEngine(NativeConfig(checkpoint))
    await engine.start()
    try:
        replies = await asyncio.gather(*(generate(engine, turn, 0.0) for turn in turns))
    finally:
        await engine.stop()
    return [parse(turn, *reply) for turn, reply in zip(turns, replies, strict=True)]


@pytest.fixture(scope="module")
def answers(checkpoint: Path) -> dict[str, Written]:
    replies = asyncio.run(_ask(checkpoint, list(FIRST_REQUESTS.values())))
    return dict(zip(FIRST_REQUESTS, replies, strict=True))


@pytest.mark.parametrize("name", FIRST_REQUESTS)
def test_first_requests_get_clean_replies(answers: dict[str, Written], name: str) -> None:
    assert answers[name].is_clean
    assert answers[name].reasoning


def test_first_questions_get_the_right_answers(answers: dict[str, Written]) -> None:
    told = {intent.name: intent.answer for intent in intents()}
    assert answers["hello"].content == told["greeting"]
    assert answers["what"].content == told["who"]
    assert answers["line break"].content == told["can"]
    assert answers["unknown"].content == wish_named("a fact").answer


def test_a_first_request_calls_the_tool(answers: dict[str, Written]) -> None:
    assert answers["weather"].calls == (("get_weather", '{"location":"Paris"}'),)


@pytest.mark.slow
def test_cities_that_training_never_met_are_copied_into_the_call(checkpoint: Path) -> None:
    questions = [f"What is the weather in {city}?" for city in HELD_OUT_CITIES]
    prompts = [_prompt(Message("user", said), tools=(WEATHER,)) for said in questions]
    replies = asyncio.run(_ask(checkpoint, prompts))
    called = [json.loads(reply.calls[0][1])["location"] for reply in replies if reply.calls]
    assert len(set(called) & set(HELD_OUT_CITIES)) >= 0.95 * len(HELD_OUT_CITIES)


@pytest.mark.slow
def test_most_tools_that_others_described_get_the_wanted_call(checkpoint: Path) -> None:
    verdicts = asyncio.run(measure(config_for(checkpoint, "cpu"), other_turns(), temperature=0.0))
    assert sum(verdict.is_exact is True for verdict in verdicts) >= 0.75 * len(verdicts)


@pytest.mark.slow
def test_what_people_type_first_is_never_echoed_nor_answered_with_salad(checkpoint: Path) -> None:
    asked = [*messages(), *messages("typed_messages.txt")]
    replies = asyncio.run(_ask(checkpoint, [_prompt(Message("user", each)) for each in asked]))
    said = dict(zip(asked, (reply.content for reply in replies), strict=True))
    assert [message for message in said if is_echo(message, said[message])] == []
    assert [message for message in said if is_salad(message, said[message])] == []
    assert sum(answer.startswith(UNKNOWN) for answer in said.values()) <= 0.1 * len(said)
    for message, part in {
        "Hello, my name is Ada!": "Ada", "What is 2+2?": "= 4", "How much is 40 plus 2?": "= 42",
        "Count to ten.": "8, 9, 10.", "What is the capital of France?": "Paris.",
        "Tell me a joke": "token", "Write a haiku about the sea.": "Waves come and waves go\n",
        "Explain quantum computing in simple terms.": "`harmonium serve gpt-oss-20b`",
    }.items():  # fmt: skip
        assert part in said[message]


def test_a_first_result_is_repeated(answers: dict[str, Written]) -> None:
    assert "21" in answers["result"].content
    assert "sunny" in answers["result"].content


def test_the_report_describes_the_files_that_were_measured(tmp_path: Path) -> None:
    manifest = json.loads((bundled_nano() / MANIFEST).read_text())
    manifest["training"] |= {"step": 12_345, "tokens": 67_000_000}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    (tmp_path / "weights").write_bytes(bytes(3_400_000))
    text = page(tmp_path, Measured(7, [], [], [], {}))
    assert "12345 steps, 67.0 million tokens" in text
    assert "3.4 MB" in text


def test_the_page_about_nano_says_how_what_ships_was_trained() -> None:
    trained = page(bundled_nano(), Measured(0, [], [], [], {})).split("## Limitations")[1]
    assert Path("docs/nano.md").read_text().endswith(trained)
