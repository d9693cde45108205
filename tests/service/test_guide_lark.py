"""Lark grammars and patterns as EBNF: xgrammar accepts the same texts."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xgrammar import Grammar
from xgrammar.testing import _is_grammar_accept_string

from service.guide_lark import COMMON, LarkError, ebnf_of_lark
from service.guide_pattern import PatternError
from service.guide_regex import ebnf_of_regex

ARITHMETIC = """
// as in OpenAI's guide
start: expr
?expr: term (SP ADD SP term)* -> add
    | term
term: factor (SP MUL SP factor)* -> mul
    | factor
factor.2: INT | "(" expr ")"
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
%import common (LF, WS)
"""
SMALL = r"""
start: [sign] ("a".."c"i | "Yes"i | nothing) tail
sign: "-" | "\"" | "//"
nothing:
!tail: tail "é" | ";"
"""


def accepts(ebnf: str, text: str) -> bool:
    accepted: bool = _is_grammar_accept_string(Grammar.from_ebnf(ebnf), text)
    return accepted


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
    ],
)
def test_the_language_is_the_same(grammar: str, good: list[str], bad: list[str]) -> None:
    ebnf = ebnf_of_lark(grammar)
    texts: Iterable[str] = (*good, *bad)
    assert [text for text in texts if accepts(ebnf, text)] == good


@pytest.mark.parametrize("name", COMMON)
def test_the_common_terminals_are_known(name: str) -> None:
    assert accepts(ebnf_of_lark(f"start: {name}\n%import common.{name}"), "") is False


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("rule: A", "no rule `start`"),
        ("start: A", "A is not defined"),
        ("start: a\na: B\na: C", "a is defined twice"),
        ('start: "a"\n%ignore " "', "'%ignore"),
        ("start: A\n%import common.HTML -> A", "common.HTML is not known"),
        ("start: A\n%import mine.A", "'%import mine.A'"),
        ("start: (A\nA: /x/", "'(' is not closed"),
        ("start: A)\nA: /x/", "')' is out of place"),
        ("start: *", "a name is missing"),
        ('start: "ab".."c"', "no range"),
        ("start: /a/i", "flags"),
        ("start: /(?=a)b/", "look-around"),
        ("start: /a(/", "not a regular expression"),
        ('start: a{"x"}', "cannot be translated"),
        ("start: " + "(" * 2000 + '"a"' + ")" * 2000, "nested too deeply"),
        (r'start: "\xg"', "is no string"),
        ('start: "a', "has no end"),
        ("start: " + "/\\" * 9000, "has no end"),
        ("start: " + "a" * 20_000, "longer than 20000"),
    ],
)
def test_what_cannot_be_translated_is_said(grammar: str, said: str) -> None:
    with pytest.raises(LarkError) as caught:
        ebnf_of_lark(grammar)
    assert said in str(caught.value)


PATTERNS = (
    r"\d{2,4}",
    r"[^a-c]x?",
    r"(?:ab|c)*d+",
    r"\w+@\w+\.(com|org)",
    r"[\]\-^a]",
    r".é*",
    r"\S\s",
    r"(?P<a>x){0}y{2,}",
    r"a||b",
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.sampled_from(PATTERNS),
    st.one_of(st.text("abcdxy1 2.@-^]é\n", max_size=5), st.sampled_from(["a@b.com", "ababdd"])),
)
def test_a_pattern_matches_what_python_matches(pattern: str, text: str) -> None:
    matches = re.fullmatch(pattern, text, re.ASCII) is not None
    assert accepts(f"root ::= {ebnf_of_regex(pattern)}", text) == matches


@pytest.mark.parametrize("pattern", [r"(a)\1", "^a", r"a\b", "(?i)a", "(?!a)b"])
def test_a_pattern_beyond_regular_languages_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        ebnf_of_regex(pattern)
