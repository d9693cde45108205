"""What any engine that follows grammars makes of each node of the tree, in process and behind it.

The vocabulary is the 256 bytes; all other ids are control tokens. The model writes noise, so that
only the grammar can make it right. The scripted engine, which follows none, takes the tree.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from engines.base import Engine, EngineRequest, FinishReason, SamplingParams
from engines.errors import InvalidGrammar
from engines.grammar.tree import (
    Alternation,
    Concatenation,
    Gbnf,
    Grammar,
    JsonSchema,
    Lark,
    Literal,
    Regex,
    Repeat,
    Text,
    Token,
    Until,
    optional,
)
from tests.engines.contract.contenders import Started

pytestmark = pytest.mark.asyncio(loop_scope="package")

END, MARK, OTHER = 300, 301, 302  # control tokens; the first ends a finished grammar


def asked(grammar: Grammar, seed: int = 0, stop: tuple[int, ...] = (END, OTHER)) -> EngineRequest:
    params: dict[str, Any] = {"temperature": 1.0, "seed": seed, "logit_bias": {END: 5.0}}
    base = EngineRequest(f"r{seed}", (21, 22, 23 + seed), SamplingParams(60, **params), stop)
    return replace(base, grammar=grammar)


async def written(engine: Engine, request: EngineRequest) -> tuple[str, FinishReason | None]:
    """What was written, control tokens as <id>, and why it ended.

    An engine without seeds draws as it likes.
    """
    if "seed" in engine.info.capabilities.lacks:
        request = replace(request, sampling=replace(request.sampling, seed=None))
    events = [event async for event in engine.generate(request)]
    ids = [id for event in events for id in event.token_ids]
    text = b"".join(bytes([id]) if id < 256 else b"<%d>" % id for id in ids)
    return text.decode(errors="replace"), events[-1].finish_reason


CASES: list[tuple[Grammar, str]] = [
    (Literal('a"\n'), 'a"\n'),
    (Token(MARK), "<301>"),
    (Concatenation((Literal("a"), Token(MARK), Literal("b"))), "a<301>b"),
    (Alternation((Literal("yes"), Literal("no"))), "yes|no"),
    (Alternation((Token(MARK), Literal("no"))), "<301>|no"),
    (Concatenation((optional(Literal("a")), Literal("b"))), "a?b"),
    (Repeat(Literal("ab"), 2, 3), "(ab){2,3}"),
    (Concatenation((Text(3), Token(MARK))), r".{0,3}<301>"),
    (Concatenation((Until("."), Token(MARK))), r"[^.]*\.<301>"),
    (Regex("[0-9]{2}"), "[0-9]{2}"),
    (Lark('start: "x" /[ab]/'), "x[ab]"),
    (Gbnf('root ::= "x" [ab]'), "x[ab]"),
    (JsonSchema('{"enum":["a",7,null]}'), '"a"|7|null'),
]


@pytest.mark.parametrize(("grammar", "pattern"), CASES, ids=lambda v: repr(v)[:40])
async def test_a_node_is_followed(
    engine: Engine, started: Started, grammar: Grammar, pattern: str
) -> None:
    async with asyncio.timeout(60):
        answers = [await written(engine, asked(grammar, seed)) for seed in range(3)]
    assert all(reason is not None for _, reason in answers)
    if not started.contender.is_model:
        return
    whole = [text for text, reason in answers if reason is FinishReason.STOP]
    assert whole or isinstance(grammar, Concatenation)  # text may go on until the limit
    for text in whole:
        assert re.fullmatch(f"(?s:{pattern})<{END}>", text), text


async def test_objects_are_what_their_schema_says(engine: Engine, started: Started) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"const": "é"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    text, reason = await written(engine, asked(JsonSchema(json.dumps(schema))))
    if started.contender.is_model and reason is FinishReason.STOP:
        found = json.loads(text.removesuffix(f"<{END}>"))
        assert list(found) == ["a", "b"]
        assert found["b"] == "é"


BAD: list[tuple[EngineRequest, str]] = [
    (asked(Regex("[", "the pattern")), "the pattern cannot be enforced"),
    (asked(JsonSchema('{"type":"king"}')), "king"),
    (asked(Lark("start: <[300]>")), "token"),
    (asked(Text(), stop=()), "stop_token_ids"),
]


@pytest.mark.parametrize(("request_", "reason"), BAD, ids=lambda v: str(v)[-30:])
async def test_what_cannot_be_followed_is_refused(
    engine: Engine, started: Started, request_: EngineRequest, reason: str
) -> None:
    if not started.contender.is_model:
        assert await written(engine, request_)
        return
    with pytest.raises(InvalidGrammar, match=reason):
        await written(engine, request_)
    assert await written(engine, asked(Literal("a")))  # and it goes on


async def test_guesses_keep_to_a_grammar_that_repeats_itself(model: Engine) -> None:
    before = await model.stats()
    text, _ = await written(model, asked(Regex("([a-d]xyzxyz){8}"), seed=4))
    assert re.fullmatch("([a-d]xyzxyz){8}", text.removesuffix(f"<{END}>"))
    assert len(set(text[::7])) > 1  # a guess that the grammar allows may be wrong
    after = await model.stats()
    if model.info.capabilities.max_drafts:
        assert after.accepted_draft_tokens - before.accepted_draft_tokens > 10
