"""Where `strict` is not asked for, what cannot be enforced is left out and the rest is enforced."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engines.errors import InvalidGrammar
from engines.grammar.tree import JsonSchema
from service.errors import RequestError
from service.guide.pattern import is_enforceable
from service.guide.schema import schema_grammar
from service.guide.widening import Widening
from tests.examples import examples
from tests.service.guide.tool_schemas import FILES, tool_schemas

Fixture = Callable[..., Any]
Json = Any

A = {"type": "object", "properties": {"a": {"type": "string"}}}


def widened(schema: Json) -> tuple[JsonSchema, str]:
    widening = Widening()
    return schema_grammar(schema, "s", widening=widening), widening.text


def fault_of(guide_of: Fixture, grammar: JsonSchema) -> str:
    """Why the engine refuses a grammar; empty where it takes it."""
    try:
        guide_of(grammar)
    except InvalidGrammar as error:
        return str(error)
    return ""


# schema, what is noted, texts that are taken, texts that are not
WIDENED: list[tuple[Json, str, list[str], list[str]]] = [
    (
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "s: uniqueItems",
        ['["a","a"]'],
        ["[1]"],
    ),
    ({"type": "string", "pattern": "^(?=a).*$"}, "s: pattern", ['"b"'], ["1"]),
    ({"type": "string", "pattern": "(a)\\1", "maxLength": 2}, "s: pattern", ['"b"'], ['"bbb"']),
    ({**A, "not": {"required": ["a"]}}, "s: not", ['{"a":""}', "{}"], ['{"a":1}', '{"b":1}']),
    (
        {**A, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        "s: if; s: then",
        ['{"a":"","b":1}'],  # open: `then` names what `properties` does not
        ['{"a":1}'],
    ),
    (
        {"properties": {"a": {}}, "allOf": [{"dependentRequired": {"a": ["b"]}}]},
        "s.allOf[0]: dependentRequired",
        ['{"a":1,"b":2}'],
        ["1"],
    ),
    (
        {"type": "object", "properties": {"x": {"$ref": "#/lost"}, "y": {"type": "integer"}}},
        "s.properties.x: $ref",
        ['{"x":[1],"y":2}'],
        ['{"y":""}', '{"z":1}'],
    ),
    (
        {"properties": {"a": {"type": "null"}}, "$ref": "https://example.com/x"},
        "s: $ref",
        ['{"a":null,"b":1}'],
        ['{"a":1}'],
    ),
    (
        {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]},
        "s: oneOf",
        ["1", "6.5"],
        ['"a"', "1.5"],
    ),
    ({"type": "integer", "multipleOf": 65536, "minimum": 3}, "s: multipleOf", ["4"], ["2"]),
    ({"type": "integer", "const": 2**53 + 1}, "s: const", ["4"], ["1.5"]),
    ({"type": "object", "minProperties": 2}, "s: minProperties", ["{}"], ["1"]),
    (
        {"type": "object", "properties": {"a": {}}, "maxProperties": 1},
        "s: maxProperties",
        ["{}"],
        ["1"],
    ),
    (
        {
            "type": "object",
            "patternProperties": {"^a": {}, "b$": {}},
            "additionalProperties": False,
        },
        "s: patternProperties",
        ['{"ab":1}', '{"c":1}'],
        ["1"],
    ),
    (
        {
            "type": "object",
            "propertyNames": {"maxLength": 3},
            "additionalProperties": {"type": "integer"},
        },
        "s: propertyNames",
        ['{"abcd":1}'],
        ['{"a":""}'],
    ),
    # what is wrong in itself
    (
        {"type": "object", "properties": {"a": {"type": "any"}}},
        "s.properties.a: type",
        ["{}"],
        ["1"],
    ),
    ({"type": "array", "items": "string"}, "s: items", ['[1,"a"]'], ["1"]),
    ({"type": "string", "enum": [1, 2]}, "s: type", ["1"], ['"1"', "3"]),
    ({"type": "string", "minLength": "1"}, "s: minLength", ['""'], ["1"]),
    (
        {**A, "required": ["a", "b"], "additionalProperties": False},
        "s: required",
        ['{"a":""}'],
        ["{}"],
    ),
    ({"type": "array", "contains": {"const": 1}}, "s: contains", ["[]"], ["1"]),
]


@pytest.mark.parametrize(("schema", "noted", "good", "bad"), WIDENED)
def test_what_cannot_be_enforced_is_left_out_and_told_and_the_rest_holds(
    fits: Fixture, schema: Json, noted: str, good: list[str], bad: list[str]
) -> None:
    grammar, text = widened(schema)
    assert text == noted
    assert [one for one in good if not fits(grammar, one)] == []
    assert [one for one in bad if fits(grammar, one)] == []


@pytest.mark.parametrize("is_strict", [True, False])
def test_bounds_beyond_those_that_can_be_told_are_tightened(fits: Fixture, is_strict: bool) -> None:
    """A 64-bit range allows what the tighter one allows."""
    int64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    double = {"type": "number", "minimum": -1.7e308, "exclusiveMaximum": 1.7e308}
    schema = {"type": "array", "prefixItems": [int64, double], "minItems": 1.0}
    widening = None if is_strict else Widening()
    grammar = schema_grammar(schema, "s", widening=widening)
    assert fits(grammar, "[9007199254740992,0.5]")
    assert not fits(grammar, "[9223372036854775807,1]")
    assert not fits(grammar, "[]")
    assert widening is None or not widening.text


def test_what_is_noted_fits_a_header_and_names_no_more_than_a_few_places() -> None:
    item = {"type": "array", "uniqueItems": True}
    _, text = widened({"type": "object", "properties": {f"ü\n{i}": item for i in range(30)}})
    assert text.isascii()
    assert text.isprintable()
    assert text.endswith("; ...")
    assert len(text) < 500


def test_a_schema_that_is_too_large_to_be_read_is_an_object(fits: Fixture) -> None:
    large = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(6_000)}}
    grammar, text = widened(large)
    assert text == "s: all"
    assert fits(grammar, '{"p1":""}')
    assert not fits(grammar, "1")


# Properties: schemas with their types and openness spelt out, which closing leaves as they are.

NAMES = ("a", "b", "c")
TEXTS = st.sampled_from(["", "a", "ab", "b1", "2026-11-27"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([0.5, 2.5]) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)
STRINGS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(1, 3),
        "pattern": st.sampled_from(["^a", "b?", "^(a|b)[0-9]*$", "^(?!a)", "(?=b)", "\\bb"]),
        "not": st.sampled_from([{"const": "a"}, {}]),
    },
)
NUMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["number", "integer"])},
    optional={
        "minimum": st.integers(-3, 1),
        "exclusiveMaximum": st.integers(2, 9),
        "multipleOf": st.sampled_from([0.5, 2, 65536]),
    },
)


def _objects(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "additionalProperties": st.booleans() | inner},
        optional={
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
            "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            "patternProperties": st.dictionaries(
                st.sampled_from(["^a", "b", "^(?=c)", "^b"]), inner, min_size=1, max_size=2
            ),
            "propertyNames": st.sampled_from([{"maxLength": 1}, {"pattern": "^[ab]$"}]),
            "minProperties": st.integers(0, 3),
            "maxProperties": st.integers(1, 3),
            "dependentRequired": st.just({"a": ["b"]}),
            "if": st.just({"required": ["a"]}),
            "then": inner,
            "else": inner,
        },
    )


def _arrays(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(1, 3),
            "uniqueItems": st.booleans(),
            "contains": inner,
        },
    )


def _combined(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    lists = st.lists(inner, min_size=1, max_size=2)
    keys = st.sampled_from(["anyOf", "oneOf", "allOf"])
    return st.builds(lambda key, parts: {key: parts}, keys, lists)


SCHEMAS = st.recursive(
    STRINGS | NUMBERS | st.just({"type": ["null", "boolean"]}) | st.just({"enum": ["a", 1, None]}),
    lambda inner: (
        _objects(inner) | _arrays(inner) | _combined(inner) | st.just({"$ref": "#/$defs/R"})
    ),
    max_leaves=6,
)
WHOLE = st.builds(
    lambda schema, referred: {**schema, "$defs": {"R": referred}},
    SCHEMAS,
    STRINGS | NUMBERS | _objects(NUMBERS),
)


@given(schema=WHOLE, values=st.lists(VALUES, min_size=20, max_size=20))
@examples(400)
def test_a_widened_schema_takes_all_that_the_schema_takes(schema: Json, values: list[Json]) -> None:
    with suppress(RequestError):  # it allows nothing
        written = json.loads(widened(schema)[0].schema)
        given_, taken = (jsonschema.Draft202012Validator(each) for each in (schema, written))
        lost = [v for v in values if given_.is_valid(v) and not taken.is_valid(v)]
        assert lost == []


@given(schema=WHOLE)
@examples(300)
def test_where_all_can_be_enforced_widening_changes_nothing(schema: Json) -> None:
    try:
        strict = schema_grammar(schema, "s")
    except RequestError:
        assume(False)
    grammar, text = widened(schema)
    if not text:  # the engine alone knows some that the strict reading leaves to it
        assert grammar == strict


JUNK: dict[str, dict[str, Json]] = {
    "object": {"not": {"required": ["zz"]}, "dependentRequired": {"zz": ["yy"]}},
    "array": {"uniqueItems": True, "contains": {"type": "string"}},
    "string": {"not": {"const": "x"}, "contentSchema": 3},
    "number": {"not": {"const": 7}},
    "integer": {"if": {"minimum": 3}, "then": {"maximum": 5}},
}


def _with_junk(node: Json) -> Json:
    """The schema with keywords that cannot be enforced, wherever they apply."""
    if isinstance(node, list):
        return [_with_junk(part) for part in node]
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    junk = JUNK.get(kind, {}) if isinstance(kind, str) else {}
    named = {"properties", "patternProperties", "$defs"}
    return {
        key: {name: _with_junk(part) for name, part in value.items()}
        if key in named and isinstance(value, dict)
        else _with_junk(value)
        for key, value in node.items()
    } | junk


@given(schema=WHOLE)
@examples(300)
def test_what_can_be_enforced_stays_enforced_beside_what_cannot(schema: Json) -> None:
    try:
        strict = schema_grammar(schema, "s")
    except RequestError:
        assume(False)
    assume(not widened(schema)[1])
    grammar, _ = widened(_with_junk(schema))
    assert grammar == strict


@given(schema=WHOLE)
@examples(60)
def test_what_is_widened_can_be_enforced(guide_of: Fixture, schema: Json) -> None:
    with suppress(RequestError):  # it allows nothing
        fault = fault_of(guide_of, widened(schema)[0])
        assert not fault or "nsatisfiable" in fault or "empty" in fault


PIECES = st.sampled_from(
    [
        *"ab09.^$|?*+()[]{}-\\,:<>=!é &~",
        "(?:",
        "(?=",
        "[a-z]",
        "{2}",
        "{1,3}",
        r"\d",
        r"\w+",
        "[^a]",
    ]
)


@given(pattern=st.lists(PIECES, max_size=9).map("".join))
@examples(400)
def test_a_pattern_that_is_kept_is_one_that_the_engine_takes(
    guide_of: Fixture, pattern: str
) -> None:
    if is_enforceable(pattern):
        grammar = schema_grammar({"type": "string", "pattern": pattern}, "s")
        fault = fault_of(guide_of, grammar)
        assert not fault or "empty" in fault


# The corpus.


def test_the_corpus_is_large_and_its_files_are_not() -> None:
    assert len(tool_schemas()) >= 200
    assert all(path.stat().st_size < 64_000 for path in FILES)


def test_each_real_schema_is_enforced_as_far_as_it_can_be_and_says_what_is_not(
    guide_of: Fixture,
) -> None:
    refused, silent = {}, []
    for name, schema in tool_schemas().items():
        grammar, text = widened(schema)
        if fault := fault_of(guide_of, grammar):
            refused[name] = fault
        try:
            schema_grammar(schema, "s")
        except RequestError as error:
            # Objects are closed anyway, so that nothing is lost with this one.
            silent += [] if text or "unevaluatedProperties" in str(error) else [name]
    assert (refused, silent) == ({}, [])
