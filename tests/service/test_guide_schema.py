"""A schema is made enforceable or refused by its place; nothing is passed over."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import RequestError
from service.guide_pattern import PatternError, json_pattern
from service.guide_schema import enforceable

NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}},
}
CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "rewritten"),
    [
        (True, {}),
        ({}, {}),
        ({"title": "x", "description": "y", "default": 3}, {}),
        ({"type": "object"}, {"type": "object", "additionalProperties": {}}),
        (
            {"properties": {"a": {"type": "null"}}},
            {"type": "object", "properties": {"a": {"type": "null"}}, **CLOSED},
        ),
        (
            {"type": "object", "required": ["a"]},
            {"type": "object", "properties": {"a": {}}, "required": ["a"], **CLOSED},
        ),
        ({"const": "a", "type": "string"}, {"enum": ["a"]}),
        ({"enum": ["a", 1, None], "type": ["string", "null"]}, {"enum": ["a", None]}),
        ({"enum": [1, 5, 9], "minimum": 3, "maximum": 7}, {"enum": [5]}),
        (
            {"type": ["string", "null"], "minLength": 2},
            {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        ),
        (
            {"type": "integer", "minimum": 0.5, "exclusiveMaximum": 7},
            {"type": "integer", "minimum": 1, "maximum": 6},
        ),
        ({"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 4}, {"enum": [4, 8]}),
        (
            {"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 3, "maximum": 8}]},
            {"type": "integer", "minimum": 3, "maximum": 8},
        ),
        (
            {"type": "string", "anyOf": [{"maxLength": 2}, {"const": "long"}]},
            {"anyOf": [{"type": "string", "maxLength": 2}, {"enum": ["long"]}]},
        ),
        (
            {"oneOf": [{"type": "integer"}, {"type": "string"}]},
            {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        ),
        ({"type": "string", "format": "colour"}, {"type": "string"}),
        ({"type": "string", "pattern": "^.*$"}, {"type": "string"}),
        (
            {"$ref": "#/$defs/A", "description": "d", "$defs": {"A": {"type": "null"}}},
            {"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "null"}}},
        ),
        (
            {"$ref": "#/$defs/A", "minimum": 2, "$defs": {"A": {"type": "integer"}}},
            {"type": "integer", "minimum": 2},
        ),
    ],
)
def test_every_keyword_keeps_its_effect(schema: Any, rewritten: Any) -> None:
    assert enforceable(schema, "schema") == rewritten


def test_a_recursive_schema_stays_recursive() -> None:
    found = enforceable({"$ref": "#/$defs/N", "$defs": {"N": NODE}}, "schema")
    (variant, _) = found["$defs"]["d0"]["properties"]["next"]["anyOf"]
    assert variant == {"$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        (3, "must be an object"),
        (False, "allows nothing"),
        ({"type": "king"}, "'king'"),
        ({"not": {}}, "not is not supported"),
        ({"if": {}}, "if is not supported"),
        ({"type": "array", "contains": {}}, "contains is not supported"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "number", "multipleOf": 0.1}, "multipleOf"),
        ({"type": "integer", "multipleOf": 3, "minimum": 0}, "give both bounds"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no integer"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength is above"),
        ({"type": "string", "maxLength": 10**9}, "lengths above"),
        ({"type": "string", "minLength": "2"}, "minLength must be a number"),
        ({"type": "string", "minLength": 2.5}, "must be a whole number"),
        ({"type": "string", "pattern": "["}, "not a regular expression"),
        ({"type": "string", "pattern": r"(?=a)b"}, "look-around"),
        ({"type": "string", "pattern": r"(a)\1"}, "back-references"),
        ({"type": "string", "pattern": "^a{2}$", "minLength": 3}, "into the pattern"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may overlap"),
        ({"anyOf": []}, "list of schemas"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "nothing has the type"),
        ({"enum": [], "type": "string"}, "no value of enum"),
        ({"enum": ["a"], "type": "null"}, "no value of enum"),
        ({"$ref": "http://example.com/x"}, "does not point into"),
        ({"$ref": "#/$defs/A"}, "points to nothing"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "never end"),
        ({"type": "object", "required": ["a"], **CLOSED}, "requires 'a'"),
        ({"type": "object", "minProperties": 2, "additionalProperties": {}}, "minProperties"),
        ({"type": "object", "patternProperties": {"a": {}}, "required": ["a"]}, "alone"),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema: Any, word: str) -> None:
    """llama.cpp#19051: a bad schema is a 400, never an unconstrained answer."""
    with pytest.raises(RequestError, match=re.escape(word)) as caught:
        enforceable(schema, "schema")
    assert (caught.value.status, caught.value.param) == (400, "schema")


def test_a_refusal_names_the_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {}}}}}
    with pytest.raises(RequestError) as caught:
        enforceable(schema, "response_format.json_schema.schema")
    assert caught.value.param == "response_format.json_schema.schema.properties.a.items"


def test_a_huge_or_deep_schema_is_refused() -> None:
    wide = {"type": "object", "properties": {f"p{i}": {} for i in range(6000)}}
    deep: Any = {"type": "null"}
    for _ in range(2000):
        deep = {"type": "array", "items": deep}
    for schema in (wide, deep):
        with pytest.raises(RequestError):
            enforceable(schema, "schema")


KEYWORDS = (
    *("type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf"),
    *("oneOf", "allOf", "$ref", "$defs", "minimum", "maxLength", "pattern", "multipleOf"),
    *("additionalProperties", "patternProperties", "propertyNames", "minItems", "format"),
    *("minProperties", "maxProperties", "uniqueItems", "additionalItems", "nullable", "a"),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(("#", "#/$defs/a", "string", "object", "integer", "array", "^a$", "a")),
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(ANYTHING)
def test_whatever_is_sent_is_rewritten_or_refused(schema: Any) -> None:
    with suppress(RequestError):
        enforceable(schema, "schema")


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^a+$", ["a", "aa"], ["", "ba", "ab"]),
        ("a", ["a", "xay"], ["", "x"]),
        ("^a", ["a", "ab"], ["ba"]),
        ("^a$|^b$", ["a", "b"], ["ab"]),
        ("^a|z$", ["ab", "yz"], ["ba"]),
        ("^[^a]$", ["b", "é"], ["a", '"', "\\", "\n"]),
        ('^"$', ['\\"'], ['"']),
        (r"^\\$", [r"\\"], ["\\"]),
        (r"^\s$", [" ", r"\t", r"\n"], ["\t", "\n"]),
        (r"^\d\w\.$", ["1a."], ["aa.", "1a!"]),
        (r"^(?<year>\d{4})$", ["2026"], ["26"]),
        ("^.$", ["x", "日"], ["", "\t", '"']),
        ("^[а-я]+$", ["да"], ["da"]),
    ],
)
def test_a_pattern_becomes_one_of_json_text(pattern: str, good: list[str], bad: list[str]) -> None:
    found = re.compile(json_pattern(pattern))
    assert [text for text in good if not found.fullmatch(text)] == []
    assert [text for text in bad if found.fullmatch(text)] == []


def test_lengths_go_into_a_pattern_that_repeats_one_class() -> None:
    found = re.compile(json_pattern("^[a-z]+$", 2, 4))
    assert [n for n in range(7) if found.fullmatch("a" * n)] == [2, 3, 4]


@pytest.mark.parametrize("pattern", ["(?i)a", r"\bx", "a^b", "(ab){1000}", "x{5000}", "[\x01]"])
def test_a_pattern_that_cannot_be_enforced_says_so(pattern: str) -> None:
    with pytest.raises(PatternError):
        json_pattern(pattern)
