"""Grammars and patterns of clients: which texts they take, and what they may not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.errors import InvalidGrammar
from engines.grammar.tree import Gbnf, Lark, Regex

Fixture = Callable[..., Any]

ARITHMETIC = """
// as in OpenAI's guide
start: expr
expr: term (SP ADD SP term)* -> add
    | term
term: factor (SP MUL SP factor)* -> mul
    | factor
factor: INT | "(" expr ")"
SP: " "   # one
ADD: "+"
MUL: "*"
%import common.INT
"""
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: "*** Add: " filename LF add_line~1..2
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""
SMALL = r"""
start: [sign] ("a".."c" | "Yes"i | nothing) tail
sign: "-" | "\"" | "//"
nothing:
tail: tail "é" | ";"
"""
SPACED = r"""
start: "let" NAME "=" NUMBER
NAME: /[a-z]+/i
%import common (NUMBER, WS)
%ignore WS
"""


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (ARITHMETIC, ["1", "12 + 3 * (4)", "(1 + 1)"], ["", "1+1", "1 +", "a", "1 + 1 "]),
        (
            PATCH,
            ["*** Begin\n*** Add: é.py\n+x = 1\n+\n*** End", "*** Begin\n*** Add: a\n+\n*** End\n"],
            ["*** Begin\n*** End", "*** Begin\n*** Add: a\n+\n+\n+\n*** End", "*** Add: a\n"],
        ),
        (SMALL, [";", "-a;éé", '"YES;', "//yEs;é", "c;"], ["d;", "--;", "é", "a", "-no;"]),
        (SPACED, ["let x=1", "let  Xy =\n 1.5"], ["letter", "let 1=x"]),
    ],
)
def test_lark(fits: Fixture, grammar: str, good: list[str], bad: list[str]) -> None:
    assert [answer for answer in good + bad if fits(Lark(grammar), answer)] == good


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "x" | "y" root', ["x", "yyx"], ["yy", ""]),
        ('root ::= item (", " item)*\nitem ::= [a-z]+ "!"?', ["ab, c!"], ["ab,", "A"]),
    ],
)
def test_gbnf(fits: Fixture, grammar: str, good: list[str], bad: list[str]) -> None:
    assert [answer for answer in good + bad if fits(Gbnf(grammar), answer)] == good


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\d{2,4}", ["12", "1234"], ["1", "a2"]),
        ("^[^a-c]x?$", ["d", "dx"], ["a", "d\n"]),
        ("a/b", ["a/b"], ["ab"]),
        (r"a\/b", ["a/b"], [r"a\b"]),
        (r"\w+@\w+\.(com|org)", ["a@b.org"], ["a@b"]),
        ("(?i)ab", ["AB"], ["ac"]),
        ("a|bc", ["a", "bc"], ["ac"]),
        ("/", ["/"], ["//"]),
        ("a/\nb: <x>", ["a/\nb: <x>"], ["a"]),
    ],
)
def test_regex(fits: Fixture, pattern: str, good: list[str], bad: list[str]) -> None:
    assert [answer for answer in good + bad if fits(Regex(pattern), answer)] == good


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (Lark("rule: A"), "start"),
        (Lark("start: A"), '"A"'),
        (Lark('start: "a"\nstart: "b"'), "duplicate"),
        (Lark("start: A\n%import common.HTML -> A"), "common.HTML"),
        (Lark("start: (A\nA: /x/"), "Expected token"),
        (Lark("start: /(?=a)b/"), "look-around"),
        (Lark("start: /a(/"), "unclosed"),
        (Lark("start: " + "(" * 2000 + '"a"' + ")" * 2000), "nested"),
        (Lark('start: "a'), "is not closed"),
        (Lark("start: /" + "a?" * 5001 + "/"), "longer than"),
        # what could reach a control token
        (Lark("start: <[200012]>"), "line 1 has a token"),
        (Lark("start: <|call|>"), "line 1 has a token"),
        (Lark('start: "a"\n  | <[*]>'), "line 2 has a token"),
        (Lark('start: ~"a"'), "negation"),
        (Lark('start: ~ /a/ "b"'), "negation"),
        (Lark('%llguidance {"allow_invalid_utf8": true}\nstart: /x/'), "directive"),
        (Lark("start: %lark { start: <[200012]> }"), "directive"),
        (Lark('start: %json {"type": "null"}'), "directive"),
        (Lark("start: @answer"), "another grammar"),
        (Lark('start[stop=""]: /x/'), "attribute"),
        (Lark(r"start: /(?-u:\xff)/"), "UTF-8"),
        (Regex(r"(?-u:\xff)"), "UTF-8"),
        (Regex("[\\"), ""),
        (Gbnf("root ::= x"), "'x'"),
        (Gbnf("a ::= b"), "'b'"),
        (Gbnf("root ::= " + "(" * 9000 + '"a"' + ")" * 9000), "cannot be read"),
        (Gbnf("root ::= [a-z] " * 2000), "longer than"),
    ],
)
def test_what_cannot_be_enforced_is_refused(guide_of: Fixture, grammar: Any, said: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        guide_of(grammar)
    assert said in str(caught.value)


def test_signs_of_a_refusal_may_stand_in_texts_patterns_and_comments(fits: Fixture) -> None:
    lark = 'start: "<|call|>" /[@~=%]<[0-9]>/ // <|call|> @x\n# ~"a" =\n'
    assert fits(Lark(lark), "<|call|>@<7>")
