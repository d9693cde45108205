"""What grammars cost whoever compiles them: time, memory and processes, and who pays."""

from __future__ import annotations

import asyncio
import json
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engines.base import FinishReason
from engines.errors import InvalidGrammar, QueueFull
from engines.grammar.tree import Alternation, JsonSchema, Lark, Literal, Regex
from engines.native.grammar import compiler as native_grammar
from engines.native.grammar import trial
from engines.native.grammar.compiler import Compiled, Guide, written
from engines.native.grammar.harmless import is_harmless
from engines.native.grammar.trial import Trials

Fixture = Callable[..., Any]

BIG = "the grammars in use take too much memory"


def doubled(num_terminals: int) -> Lark:
    """Terminals that each are twice the one before: eleven take 0.3 s and 8 MB."""
    terminals = [f"T{i}: T{i - 1} T{i - 1}" for i in range(1, num_terminals)]
    return Lark("\n".join([f"start: T{num_terminals - 1}", "T0: /a?b?c?/", *terminals]))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """Those that are started for trials."""
    started: list[Process] = []
    start = asyncio.create_subprocess_exec

    async def started_too(*arguments: Any, **options: Any) -> Process:
        started.append(await start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started_too)
    return started


@pytest.fixture
async def trials() -> AsyncIterator[Trials]:
    trials = Trials(300, 60.0)
    yield trials
    await trials.stop()


async def test_a_trial_that_is_killed_is_made_again(
    trials: Trials, processes: list[Process]
) -> None:
    assert await trials.run(written(Literal("a"))) < 4_000_000
    slow = asyncio.create_task(trials.run(written(doubled(11))))
    await asyncio.sleep(0.05)
    processes[0].kill()
    assert await slow > 4_000_000  # bytes
    processes[1].kill()
    await processes[1].wait()
    await trials.run(written(Literal("b")))
    assert len(processes) == 3


async def test_a_trial_that_is_killed_again_and_again_is_a_refusal(
    trials: Trials, processes: list[Process]
) -> None:
    run = asyncio.create_task(trials.run(written(doubled(20))))
    async with asyncio.timeout(60):
        for number in range(2):
            while len(processes) <= number:
                await asyncio.sleep(0.01)
            processes[number].kill()
        with pytest.raises(InvalidGrammar, match="memory"):
            await run
    await trials.run(written(Literal("a")))


async def test_a_grammar_that_takes_too_much_memory_is_refused(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MAX_GRAMMAR_BYTES", 4_000_000)
    with pytest.raises(InvalidGrammar, match="memory"):
        await trials.run(written(doubled(11)))
    await trials.run(written(doubled(4)))


async def test_no_more_trials_run_than_have_a_place_and_one_stays(
    trials: Trials, processes: list[Process]
) -> None:
    await asyncio.gather(*(trials.run(written(Literal(text))) for text in "abcdef"))
    assert len(processes) <= 6
    assert sum(process.returncode is None for process in processes) == 1


async def test_who_has_slow_grammars_compiled_holds_up_no_other_tenant(
    make_engine: Fixture, make_request: Fixture, collect: Fixture
) -> None:
    engine = await make_engine(grammar_timeout_s=30.0)
    ours = (Regex("[ab]{3}"), JsonSchema('{"type":"null"}'))
    slow = [
        asyncio.create_task(collect(engine, replace(make_request(grammar), tenant="a")))
        for grammar in (*(doubled(25 + i) for i in range(5)), *ours)
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        for seed, grammar in enumerate(ours):
            request = replace(make_request(grammar, seed), tenant="b")
            assert (await collect(engine, request))[-1].finish_reason is FinishReason.STOP
    assert not all(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)


async def test_what_is_compiled_is_bounded_in_bytes(
    make_engine: Fixture,
    make_request: Fixture,
    collect: Fixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_grammar, "MAX_BYTES", 2.5 * native_grammar._LEAST_BYTES)
    engine = await make_engine(grammar_timeout_s=60.0)
    for text in ("a", "b", "c", "c", "a"):  # the third takes the first one's place
        await collect(engine, make_request(Literal(text)))
    assert (await engine.stats()).num_grammars_compiled == 4
    streams = [
        engine.generate(make_request(Regex(pattern), seed, 200, logit_bias={}))
        for seed, pattern in enumerate(("[ab]*", "[cd]*"))
    ]
    for stream in streams:
        await anext(stream)
    with pytest.raises(QueueFull, match=BIG):
        await collect(engine, make_request(Literal("d")))
    for stream in streams:
        await stream.aclose()


async def test_an_ordinary_schema_needs_no_trial(
    make_engine: Fixture,
    make_request: Fixture,
    collect: Fixture,
    processes: list[Process],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_grammar, "_GRACE_S", 0.0)
    engine = await make_engine()
    async with asyncio.timeout(60):
        while not processes:  # one is started ahead
            await asyncio.sleep(0.01)
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    choice = Alternation((JsonSchema(json.dumps(schema)), Literal("no")))
    events = await collect(engine, make_request(choice))
    assert events[-1].finish_reason is FinishReason.STOP
    for process in processes:
        assert process.returncode is None
        process.kill()
    await collect(engine, make_request(JsonSchema('{"type":"null"}')))
    assert len(processes) == 1


class Spending:
    """In the library's place: masks that take as long as they are told."""

    cost_s = 0.0

    def deep_copy(self) -> Spending:
        return self

    def unsafe_compute_mask_ptr(self, pointer: int, num_bytes: int) -> None:
        end_s = time.thread_time() + self.cost_s
        while time.thread_time() < end_s:
            pass

    def is_error(self) -> bool:
        return False


def test_cheap_tokens_earn_nothing_for_costly_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_grammar, "_FREE_S", 0.02)
    monkeypatch.setattr(native_grammar, "_TOKEN_S", 0.001)
    spending: Any = Spending()
    guide, mask = Guide(Compiled(spending, 0), 63, 62), np.zeros(2, np.int32)

    def fill(number: int) -> None:
        for _ in range(number):
            guide.fill(mask)

    fill(1_000)
    spending.cost_s = 0.005
    with pytest.raises(InvalidGrammar, match="finding its next token takes too long"):
        fill(20)


TEXT = {"type": "string"}
HARMLESS: list[Any] = [
    TEXT,
    {"type": "string", "maxLength": 500, "format": "date"},
    {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "additionalProperties": TEXT},
    {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 99.5}, "maxItems": 100},
    {
        "anyOf": [{"enum": ["a", 1, None]}, {"const": True}, {"$ref": "#/$defs/A"}],
        "$defs": {"A": TEXT},
    },
    {"properties": {f"p{i}": TEXT for i in range(1_000)}},
]
NOT: list[Any] = [
    {"type": "string", "pattern": "a"},
    {"type": "string", "maxLength": 10_001},
    {"type": "string", "maxLength": "5"},
    {"type": "integer", "enum": [1e298]},  # which overflows a stack
    {"type": "number", "minimum": 1e-30},
    {"type": "number", "multipleOf": 3},
    {"const": {"a": 1}},
    {"allOf": [TEXT]},
    {"anyOf": [TEXT], "type": "string"},
    {"$ref": "#/$defs/A", "type": "string", "$defs": {"A": TEXT}},
    {"type": "object", "properties": {"a": TEXT}, "additionalProperties": True},
    {"type": "object", "patternProperties": {"a": TEXT}},
    {"type": "array", "prefixItems": [TEXT]},
    {"type": "array", "items": {"type": "array", "items": TEXT, "minItems": 101}},
    {"properties": {f"p{i}": TEXT for i in range(2_000)}},
    {"properties": 3},
    {"items": 3},
    3,
]


@pytest.mark.parametrize("schema", HARMLESS, ids=lambda v: json.dumps(v)[:50])
def test_ordinary_schemas_are_known(schema: Any) -> None:
    part = JsonSchema(json.dumps(schema))
    assert is_harmless([part])
    assert not is_harmless([part, Regex("a")])


@pytest.mark.parametrize("schema", NOT, ids=lambda v: json.dumps(v)[:50])
def test_what_is_not_known_is_tried(schema: Any) -> None:
    assert not is_harmless([JsonSchema(json.dumps(schema))])
