"""A client's structural tag: which texts it takes, and what it may not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.errors import RequestError
from service.guide.format import format_grammar

Fixture = Callable[..., Any]

ANY = {"type": "any_text"}
DIGITS = {"type": "regex", "pattern": "[0-9]+"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


CALLS = {
    "type": "triggered_tags",
    "triggers": ["<f"],
    "tags": [tag("<f=a>", DIGITS, "</f>"), tag("<f=b>", ANY, "</f>")],
}
LIST = {
    "type": "tags_with_separator",
    "tags": [tag("<", DIGITS, ">")],
    "separator": ",",
    "at_least_one": True,
}


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        (const("ok"), ["ok"], ["no", ""]),
        (ANY, ["", "anything\n"], []),
        ({"type": "json_schema", "json_schema": {"type": "null"}}, ["null"], ["1"]),
        ({"type": "grammar", "grammar": 'root ::= "x" | "y" root'}, ["yx"], ["y"]),
        ({"type": "or", "elements": [const("a"), DIGITS]}, ["a", "12"], ["a1"]),
        ({"type": "sequence", "elements": [DIGITS, const("!")]}, ["1!"], ["1", "!"]),
        ({"type": "sequence", "elements": [ANY, const("."), DIGITS]}, ["ab.1"], ["ab", "ab."]),
        ({"type": "optional", "content": const("a")}, ["", "a"], ["aa"]),
        ({"type": "star", "content": const("a")}, ["", "aa"], ["b"]),
        ({"type": "plus", "content": const("a")}, ["a", "aa"], [""]),
        (tag("<a>", ANY, "</a>"), ["<a>x y</a>", "<a></a>"], ["<a>x", "x</a>"]),
        (tag("<a>", DIGITS, ["!", "?"]), ["<a>1?", "<a>1!"], ["<a>1"]),
        (CALLS, ["so", "so <f=a>1</f> and <f=b>x</f>.", ""], ["<f=a>x</f>", "<f=c>"]),
        ({**CALLS, "at_least_one": True}, ["<f=a>1</f> so"], ["so", "so <f=a>1</f>"]),
        ({**CALLS, "stop_after_first": True}, ["so <f=a>1</f>", "so"], ["<f=a>1</f><f=a>1</f>"]),
        (LIST, ["<1>", "<1>,<2>"], ["", "<1><2>", "<1>,"]),
        ({**LIST, "at_least_one": False, "stop_after_first": True}, ["", "<1>"], ["<1>,<2>"]),
    ],
)
def test_a_format(fits: Fixture, format: Any, good: list[str], bad: list[str]) -> None:
    grammar = format_grammar(format, "format")
    assert [answer for answer in good + bad if fits(grammar, answer)] == good


NESTED: Any = ANY
for _ in range(20):
    NESTED = {"type": "star", "content": NESTED}


@pytest.mark.parametrize(
    ("format", "param"),
    [
        (3, "format"),
        ({"type": "qwen_xml_parameter"}, "format"),
        ({"type": "const_string"}, "format.value"),
        ({"type": "any_text", "excludes": ["x"]}, "format.excludes"),
        ({"type": "or", "elements": []}, "format.elements"),
        ({"type": "sequence", "elements": [ANY, DIGITS]}, "format.elements[1]"),
        ({"type": "json_schema", "json_schema": {"not": {}}}, "format.json_schema"),
        ({**CALLS, "triggers": [""]}, "format.triggers"),
        ({**CALLS, "triggers": ["x"]}, "format.tags[0].begin"),
        ({"type": "or", "elements": [ANY] * 1001}, "format.elements[999]"),
        (NESTED, "format" + ".content" * 17),
    ],
)
def test_what_cannot_be_enforced_is_named(format: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        format_grammar(format, "format")
    assert caught.value.param == param
