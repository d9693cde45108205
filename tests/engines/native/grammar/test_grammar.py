"""The native engine follows a grammar, whatever else happens in the batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from engines.base import FinishReason, TokenEvent
from engines.errors import EngineStartError, InvalidGrammar, QueueFull
from engines.grammar.tree import (
    Alternation,
    Concatenation,
    Gbnf,
    JsonSchema,
    Lark,
    Literal,
    Regex,
    Text,
)
from engines.native.grammar import compiler as native_grammar
from engines.native.grammar.compiler import MAX_PENDING_OF_TENANT
from engines.native.grammar.vocabulary import read_vocabulary
from service.harmony.vocabulary import decode_bytes, encode_text

Fixture = Callable[..., Any]

shares_engine = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 3}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def json_of(schema: Any) -> JsonSchema:
    return JsonSchema(json.dumps(schema))


PERSON = json_of(SCHEMA)


def ids_of(events: Iterable[TokenEvent]) -> list[int]:
    return [token_id for event in events for token_id in event.token_ids]


def text_of(events: Iterable[TokenEvent]) -> str:
    return b"".join(decode_bytes(token_id) for token_id in ids_of(events)).decode()


@shares_engine
async def test_noise_becomes_what_the_grammar_says(
    engine: Any, make_request: Fixture, collect: Fixture
) -> None:
    requests = [make_request(PERSON, seed, temperature=1.0 + seed % 2) for seed in range(4)]
    answers = await asyncio.gather(*(collect(engine, request) for request in requests))
    ended = [events for events in answers if events[-1].finish_reason is FinishReason.STOP]
    assert ended
    for events in ended:
        person = json.loads(text_of(events))
        assert set(person) == {"name", "age"}
        assert person["age"] >= 3


@shares_engine
async def test_penalties_filters_and_logprobs_work_under_a_mask(
    engine: Any, make_request: Fixture, collect: Fixture
) -> None:
    options = {"top_p": 0.9, "top_k": 50, "min_p": 0.01, "frequency_penalty": 1.0, "logprobs": 3}
    events = await collect(engine, make_request(PERSON, repetition_penalty=1.2, **options))
    assert text_of(events).startswith("{")
    for event in events:
        for entry in event.logprobs:
            # Of the model's own distribution: what the mask excludes has one too.
            assert isfinite(entry.logprob)
            assert all(isfinite(logprob) for _, logprob in entry.top)


async def test_neighbours_and_preemption_change_nothing(
    make_engine: Fixture, make_request: Fixture, collect: Fixture
) -> None:
    requests = [make_request(PERSON if i % 2 else None, i, 50, logit_bias={}) for i in range(4)]
    roomy = await make_engine(max_num_seqs=1)
    alone = [ids_of(await collect(roomy, request)) for request in requests]
    crowded = await make_engine(num_kv_blocks=12, max_model_len=64)
    together = await asyncio.gather(*(collect(crowded, request) for request in requests))
    assert [ids_of(events) for events in together] == alone
    assert (await crowded.stats()).num_preemptions > 0


@pytest.mark.parametrize("bound", [{"minLength": 1}, {"maxLength": 9}])
@shares_engine
async def test_strings_of_a_length_hold_no_control_characters(
    engine: Any, make_request: Fixture, collect: Fixture, bound: dict[str, int]
) -> None:
    """A tab, which some libraries allow, makes the JSON invalid."""
    grammar = json_of({"type": "string", **bound})
    tab, letter = (encode_text(text)[0] for text in ("\t", "a"))
    wish = {tab: 90.0, letter: 80.0, encode_text('"')[0]: 70.0}
    events = await collect(engine, make_request(grammar, max_tokens=20, logit_bias=wish))
    assert text_of(events).startswith('"a')
    assert "\t" not in text_of(events)


@shares_engine
async def test_names_beside_strings_of_a_length_stay_what_they_are(
    engine: Any, make_request: Fixture, collect: Fixture
) -> None:
    names = ["größe", "naïf", "a\\xdfe", "é", "日本", 'q"']
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "maxLength": 3} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    grammar = json_of(schema)
    events = await collect(engine, make_request(grammar))
    assert events[-1].finish_reason is FinishReason.STOP
    assert list(json.loads(text_of(events))) == names


async def test_a_seed_repeats_and_equal_grammars_are_compiled_once(
    make_engine: Fixture, make_request: Fixture, collect: Fixture
) -> None:
    engine = await make_engine()
    answers = await asyncio.gather(*(collect(engine, make_request(PERSON, 7)) for _ in range(3)))
    answers.append(await collect(engine, make_request(PERSON, 7)))
    assert len({tuple(ids_of(events)) for events in answers}) == 1
    stats = await engine.stats()
    assert stats.num_grammars_compiled == 1
    assert stats.grammar_compile_s > 0


@shares_engine
async def test_a_dead_end_ends_its_own_request_only(
    engine: Any, make_request: Fixture, collect: Fixture
) -> None:
    # After the a comes a character that does not exist.
    stuck = Regex(r"a[^\u0000-\U0010FFFF]")
    outcomes = await asyncio.gather(
        collect(engine, make_request(PERSON, 1)),
        *(collect(engine, make_request(stuck, seed)) for seed in range(2, 6)),
        return_exceptions=True,
    )
    assert not isinstance(outcomes[0], BaseException)
    assert text_of(outcomes[0]).startswith("{")
    for outcome in outcomes[1:]:
        with pytest.raises(InvalidGrammar, match="no token is allowed"):
            raise outcome if isinstance(outcome, BaseException) else AssertionError(outcome)
    await engine.check_health()


def chain(num_rules: int) -> Lark:
    """Rules that each refer to the next."""
    rules = [f'r{i}: "x" r{i + 1}' for i in range(num_rules)]
    return Lark("\n".join(["start: r0", *rules, f'r{num_rules}: "y"']))


def doubled(num_terminals: int) -> Lark:
    """Terminals that each are twice the one before."""
    terminals = [f"T{i}: T{i - 1} T{i - 1}" for i in range(1, num_terminals)]
    return Lark("\n".join([f"start: T{num_terminals - 1}", "T0: /a?b?c?/", *terminals]))


REFUSED = [
    (Regex("[", "tools[1].format"), r"^tools\[1\]\.format cannot be enforced: .*unclosed"),
    (
        Concatenation((PERSON, Alternation((Lark("start: x", "here"), Text())))),
        "^here cannot .*unknown name",
    ),
    (Gbnf("root ::= missing"), "missing"),
    (json_of({"type": "king"}), "king"),
    (Literal("a" * 1_000_001), "at most 1000000"),
    (chain(45_000), "memory"),
]


@shares_engine
async def test_what_cannot_be_compiled_is_refused_with_the_reason(
    engine: Any, make_request: Fixture, collect: Fixture
) -> None:
    for bad, reason in REFUSED:
        with pytest.raises(InvalidGrammar, match=reason):
            await collect(engine, make_request(bad))
    await collect(engine, make_request(PERSON))


async def test_a_slow_grammar_is_given_up_and_holds_up_nobody(
    make_engine: Fixture, make_request: Fixture, collect: Fixture
) -> None:
    engine = await make_engine(grammar_timeout_s=0.5)
    compiling = asyncio.create_task(collect(engine, make_request(doubled(20))))
    free = await collect(engine, make_request(None, 1, 8))
    assert len(ids_of(free)) > 0
    with pytest.raises(InvalidGrammar, match=r"longer than 0\.5 s"):
        await compiling


async def test_a_tenant_that_has_many_grammars_compiled_waits_alone(
    make_engine: Fixture, make_request: Fixture, collect: Fixture
) -> None:
    engine = await make_engine(grammar_timeout_s=5.0)
    greedy = [
        asyncio.create_task(collect(engine, replace(make_request(doubled(20 + i)), tenant="a")))
        for i in range(MAX_PENDING_OF_TENANT + 1)
    ]
    done, waiting = await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(QueueFull, match="too many grammars"):
        await next(iter(done))
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_grammar_that_costs_too_much_at_each_token_ends_its_own_request_only(
    make_engine: Fixture,
    make_request: Fixture,
    collect: Fixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_grammar, "_FREE_S", 0.0)
    monkeypatch.setattr(native_grammar, "_TOKEN_S", 0.001)
    ambiguous = Lark('start: a\na: a a a | /[a-z ]/ | ""')
    engine = await make_engine()
    outcomes = await asyncio.gather(
        collect(engine, make_request(ambiguous, 1, logit_bias={})),
        collect(engine, make_request(None, 2, 20, logit_bias={})),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], InvalidGrammar)
    assert "too expensive to enforce" in str(outcomes[0])
    assert not isinstance(outcomes[1], BaseException)
    assert len(ids_of(outcomes[1])) == 20


@shares_engine
async def test_text_that_is_forced_is_not_followed_to_its_end_at_once(
    engine: Any, make_request: Fixture, collect: Fixture
) -> None:
    """A grammar of ten letters may force a billion."""
    events = await collect(engine, make_request(Regex("((a{1000}){1000}){1000}"), max_tokens=5))
    assert set(text_of(events)) == {"a"}


async def test_a_request_that_waits_for_its_grammar_counts_as_waiting_and_can_be_closed(
    make_engine: Fixture, make_request: Fixture, collect: Fixture
) -> None:
    engine = await make_engine()
    compiling = asyncio.create_task(collect(engine, make_request(PERSON)))
    await asyncio.sleep(0)
    assert (await engine.stats()).num_waiting == 1
    compiling.cancel()
    await asyncio.wait([compiling])
    assert (await engine.stats()).num_waiting == 0
    await engine.drain()


async def test_without_a_vocabulary_a_grammar_is_refused(
    make_engine: Fixture, make_request: Fixture, collect: Fixture
) -> None:
    engine = await make_engine(vocabulary_path=None)
    with pytest.raises(InvalidGrammar, match="vocabulary_path"):
        await collect(engine, make_request(PERSON))


def test_the_vocabulary_file_has_every_tokens_bytes(vocabulary_path: Path) -> None:
    vocabulary = read_vocabulary(vocabulary_path, 201_088)
    for token_id in (*encode_text("Hello, wörld 你好"), 0, 199_997):
        assert vocabulary[token_id] == decode_bytes(token_id)
    assert set(vocabulary[199_998:]) == {b""}


@pytest.mark.parametrize("content", [None, b"AA== 5 6\n", b"AA== x\n", b"AA== 300000\n"])
def test_a_bad_vocabulary_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineStartError, match=str(path)):
        read_vocabulary(path, 201_088)
