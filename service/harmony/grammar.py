"""The grammar of Harmony's turns; callers bring the grammars of what the turns contain.

The model spells a call in several ways; all are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engines.grammar.tree import (
    Concatenation,
    Grammar,
    JsonSchema,
    Literal,
    Text,
    Token,
    either,
    optional,
)
from service.harmony.header import RECIPIENTS, recipient_of
from service.harmony.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START, encode_text


def answer_grammar(
    calls: Sequence[Grammar], final: Grammar | None, max_reasoning_tokens: int | None
) -> Grammar:
    turns = [_sequence(optional(_message("commentary", Text())), either(calls))] if calls else []
    if final is not None:
        turns.append(final)
    return _sequence(optional(_message("analysis", Text(max_reasoning_tokens))), either(turns))


def call_grammar(name: str, content: Grammar, *, is_free_text: bool) -> Grammar:
    to = f" to={recipient_of(name)}"
    return _sequence(
        either(
            [
                _sequence(Literal(to), Token(CHANNEL), Literal("commentary")),
                _sequence(Token(CHANNEL), Literal("commentary" + to)),
            ]
        ),
        optional(Literal(" code")) if is_free_text else _JSON_TYPE,
        Token(MESSAGE),
        content,
        Token(CALL),
    )


def builtin_call_grammar(tool: str) -> Grammar:
    return either([_builtin_call(recipient) for recipient in RECIPIENTS[tool]])


def _builtin_call(recipient: str) -> Grammar:
    to = f" to={recipient}"
    channel = either([Literal("analysis"), Literal("commentary")])
    return _sequence(
        either(
            [
                _sequence(Literal(to), Token(CHANNEL), channel),
                _sequence(Token(CHANNEL), channel, Literal(to)),
            ]
        ),
        either([Literal(" code"), *_JSON_TYPES]),
        Token(MESSAGE),
        Text() if recipient == "python" else JsonSchema('{"type":"object"}'),
        Token(CALL),
    )


def final_grammar(content: Grammar | None) -> Grammar:
    if content is None:
        return _sequence(Token(CHANNEL), Literal("final"), Token(MESSAGE), Text())
    return _sequence(Token(CHANNEL), Literal("final"), _JSON_TYPE, Token(MESSAGE), content)


def end_of_reasoning(grammar: Grammar | None) -> tuple[list[int], Grammar | None]:
    next_turn = [END, START, *encode_text("assistant")]
    if grammar is None:
        return [*next_turn, CHANNEL, *encode_text("final"), MESSAGE], None
    assert isinstance(grammar, Concatenation)
    _, turns = grammar.parts
    return next_turn, turns


def _message(channel: str, content: Grammar) -> Grammar:
    """A message that another one follows."""
    return _sequence(
        Token(CHANNEL),
        Literal(channel),
        Token(MESSAGE),
        content,
        Token(END),
        Token(START),
        Literal("assistant"),
    )


def _sequence(*parts: Grammar) -> Grammar:
    return Concatenation(parts)


_JSON_TYPES: Final[tuple[Grammar, ...]] = (
    Literal(""),
    Literal(" json"),
    _sequence(Literal(" "), Token(CONSTRAIN), Literal("json")),
    _sequence(Token(CONSTRAIN), Literal("json")),
)
_JSON_TYPE: Final = either(_JSON_TYPES)
