"""One tree, written as llguidance reads it; the library is not needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.errors import InvalidGrammar
from engines.grammar.llguidance import llguidance_grammar, llguidance_lark
from engines.grammar.tree import (
    Alternation,
    Concatenation,
    Gbnf,
    JsonSchema,
    Lark,
    Literal,
    Regex,
    Repeat,
    Text,
    Token,
    Until,
    optional,
    written_parts,
)

SCHEMA = JsonSchema('{"type":"integer"}', "the schema")
TREE = Concatenation(
    (
        optional(Concatenation((Token(200_005), Literal('a"\n'), Text(7)))),
        Alternation((Literal("yes"), Literal("no"))),
        Alternation((SCHEMA, Regex("a/b"))),
        Until("end"),
        Repeat(Gbnf("root ::= x"), 1),
        Repeat(Literal("x"), 2, 3),
        Text(),
    )
)


def test_llguidance_reads_grammars_that_name_each_other() -> None:
    written = json.loads(llguidance_grammar(TREE, lambda text: f"start: /{text}/"))
    answer, *parts = written["grammars"]
    assert answer["lark_grammar"].splitlines() == [
        '%llguidance {"no_forcing": true}',
        'start: (((<[200005]> "a\\"\\n" r0)){0,1} T1 (@p0 | @p1) r2 (@p2){1,} ("x"){2,3} r3)',
        "r0[max_tokens=7]: /(?s:.*)/",
        'T1: "yes" | "no"',
        'r2[lazy]: /(?s:.*)/ "end"',
        "r3: /(?s:.*)/",
    ]
    assert [part["name"] for part in parts] == ["p0", "p1", "p2"]
    assert parts[0]["json_schema"]["type"] == "integer"
    assert [part["lark_grammar"] for part in parts[1:]] == [
        r"start: /a\/b/",
        "start: /root ::= x/",
    ]


def test_llguidance_reads_one_text_with_the_grammars_of_clients_in_it() -> None:
    gbnf = '%llguidance {}\n\nstart: "{"{2} // }\n'
    assert llguidance_lark(TREE, lambda text: gbnf).splitlines() == [
        '%llguidance {"no_forcing": true}',
        'start: (((<[200005]> "a\\"\\n" r0)){0,1} T1 (p0 | p1) r2 (p2){1,} ("x"){2,3} r3)',
        "r0[max_tokens=7]: /(?s:.*)/",
        'T1: "yes" | "no"',
        'r2[lazy]: /(?s:.*)/ "end"',
        "r3: /(?s:.*)/",
        'p0: %json {"type": "integer", '
        r'"x-guidance": {"whitespace_pattern": "[\\x20\\x0A]"}}',
        "p1: %lark {",
        r"start: /a\/b/",
        "}",
        "p2: %lark {",
        'start: "{"{2}',
        "}",
    ]


@pytest.mark.parametrize(
    "text", ['start: "x" }\nr3: "all"', 'start: "x" { // }', 'start: "x" # {\n}', "start: <[3]>"]
)
def test_no_grammar_of_a_client_reaches_beyond_its_braces(text: str) -> None:
    with pytest.raises(InvalidGrammar):
        llguidance_lark(Concatenation((Lark(text), Text())), str)


def test_what_a_client_wrote_is_found() -> None:
    expected: list[Any] = [SCHEMA, Regex("a/b"), Gbnf("root ::= x")]
    assert written_parts(TREE) == expected
