"""Each keyword of JSON Schema is enforced on what is written, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import InvalidGrammar
from service.errors import RequestError
from service.guide.schema import schema_grammar
from tests.examples import examples

Fixture = Callable[..., Any]

B = {"B": {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}}
NODE = {"N": {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}}}}
PETS = {
    "C": {"properties": {"k": {"const": "c"}, "n": {"type": "integer"}}, "required": ["k"]},
    "D": {"properties": {"k": {"const": "d"}}, "required": ["k"]},
}
OPEN: Any = {"additionalProperties": True}
INTEGERS: Any = {"type": "object", "additionalProperties": {"type": "integer"}}


def text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def array(**keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords}


def named(name: str, *keys: str) -> dict[str, Any]:
    """A variant told by a number."""
    known = {"k": {"const": int(name)}, **{key: {} for key in keys}}
    return {"properties": known, "required": ["k"]}


# schema, texts that are taken, texts that are not
ENFORCED: list[tuple[Any, list[str], list[str]]] = [
    (True, ["1", '{"a":[]}'], ["x"]),
    ({"title": "x", "default": 3, "x-mine": 1}, ["1", "[]"], [""]),
    # types and values
    ({"type": "integer"}, ["-7", "0"], ["1.5", '"1"']),
    ({"type": ["string", "null"], "minLength": 2}, ["null", '"ab"'], ['"a"', "1"]),
    ({"type": "boolean"}, ["true"], ["1"]),
    ({"const": "a", "type": "string"}, ['"a"'], ['"b"']),
    ({"const": {"a": [1, "x"]}}, ['{"a":[1,"x"]}'], ['{"a":[1]}']),
    ({"enum": ["a", 1, None], "type": ["string", "null"]}, ['"a"', "null"], ["1"]),
    ({"enum": [1, 5, 9], "minimum": 3, "maximum": 7}, ["5"], ["1", "9"]),
    ({"enum": ["a", "b1"], "pattern": "[0-9]"}, ['"b1"'], ['"a"']),
    ({"type": "string", "nullable": True}, ["null", '"a"'], ["1"]),
    ({"$ref": "#/$defs/B", "nullable": True, "$defs": B}, ["null", '{"b":""}'], ["{}"]),
    # numbers
    ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 7}, ["1", "6"], ["0", "7", "1.5"]),
    ({"maximum": 3, "exclusiveMinimum": 1}, ["2.5"], ["1", "4", '"a"']),
    ({"type": "integer", "multipleOf": 3, "minimum": 0}, ["0", "12"], ["-3", "4"]),
    ({"type": "integer", "minimum": -1.5, "maximum": 1.5}, ["-1", "0", "1"], ["-2", "2", "0.5"]),
    ({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 3}, ["1", "2"], ["0", "3"]),
    (
        {"type": "number", "exclusiveMinimum": 0.25, "exclusiveMaximum": 0.5},
        ["0.3", "0.2501", "0.4999"],
        ["0.25", "0.250", "0.5", "0.2", "1"],
    ),
    ({"type": "number", "minimum": -0.5, "maximum": -0.25}, ["-0.3", "-0.5"], ["-0.51", "0.3"]),
    ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, ["2"], ["1"]),  # draft 4
    # steps of a decimal number are written with as many digits as it has, or as an integer
    (
        {"type": "number", "multipleOf": 0.25},
        ["1", "-0.75", "0.50", "0.00"],
        ["0.3", "0.26", "0.5"],
    ),
    ({"type": "number", "multipleOf": 0.1}, ["0.3", "-1.5", "7"], ["0.35", "0.30"]),
    ({"type": "number", "multipleOf": 2.5}, ["2.5", "10", "-7.5"], ["1", "2.4"]),
    ({"type": "integer", "multipleOf": 2.5}, ["5", "-10"], ["2.5", "3"]),
    ({"type": "number", "multipleOf": 1e-3, "minimum": 0.5}, ["0.525", "3"], ["0.5255", "0.499"]),
    ({"allOf": [{"multipleOf": 0.25}, {"multipleOf": 0.1}]}, ["0.5", "2"], ["0.25", "0.1"]),
    # strings
    (text(minLength=2, maxLength=3), ['"ab"', '"日本"', '"a\\n"'], ['"a"', '"abcd"', '"a\n"']),
    (text(pattern="^[a-z]+$", minLength=2, maxLength=4), ['"ab"'], ['"a"', '"abcde"']),
    (text(maxLength=1), ['"é"', '"😀"'], ['"😀😀"', '"ab"']),
    (text(minLength=2, pattern="é"), ['"éa"', '"日é"'], ['"é"', '"日本"']),
    (text(format="date"), ['"2020-01-31"'], ['"2020-01-32"']),
    (text(format="date-time"), ['"2020-01-31T00:00:00Z"'], ['"2020"']),
    (text(format="time"), ['"10:00:00Z"'], ['"10"']),
    (text(format="duration"), ['"P1D"'], ['"1D"']),
    (text(format="email"), ['"a@b.co"'], ['"a"']),
    (text(format="hostname"), ['"a.b"'], ['"-"']),
    (text(format="ipv4"), ['"1.2.3.4"'], ['"1.2.3.256"']),
    (text(format="ipv6"), ['"::1"'], ['"x"']),
    (text(format="uri"), ['"http://a/b"'], ['"a b"']),
    (text(format="uuid"), ['"12345678-1234-1234-1234-123456789abc"'], ['"1"']),
    (text(format="colour"), ['"x"'], ["1"]),
    # arrays
    (array(items={"type": "integer"}, minItems=1, maxItems=2), ["[1]", "[1,2]"], ["[]", '["a"]']),
    (array(prefixItems=[{"type": "integer"}], items=False), ["[1]", "[]"], ["[1,2]", '["a"]']),
    (array(prefixItems=[{"type": "integer"}], items=text()), ["[1]", '[1,"a"]'], ["[1,2]"]),
    (array(prefixItems=[{}, {"const": 2}], minItems=2), ["[1,2]", "[1,2,3]"], ["[1]", "[2,1]"]),
    (array(items=[{"type": "integer"}], additionalItems={"type": "null"}), ["[1,null]"], ["[1,1]"]),
    (array(uniqueItems=True, maxItems=1), ["[1]"], ["[1,1]"]),
    # objects: closed unless they say otherwise
    ({"type": "object"}, ['{"a":1}', "{}"], ["1"]),
    ({"properties": {"a": {"type": "null"}}}, ["{}", '{"a":null}'], ['{"b":1}', "1"]),
    ({"type": "object", "required": ["a"]}, ['{"a":1}'], ["{}", '{"a":1,"b":2}']),
    ({"properties": {"a": {}}, "additionalProperties": True}, ['{"b":1}', '{"a":1}'], ["1"]),
    ({"properties": {"a": False, "b": {}}}, ['{"b":1}', "{}"], ['{"a":1}']),
    ({"patternProperties": {"^x-": {"type": "integer"}}}, ['{"x-a":1}'], ['{"y":1}', '{"x-a":""}']),
    (
        {"patternProperties": {"^x": {"type": "null"}}, "properties": {"a": {}}},
        ['{"a":1,"x":null}'],
        ['{"y":1}', '{"x":1}'],
    ),
    ({**INTEGERS, "propertyNames": {"enum": ["a", "b+"]}}, ['{"a":1}', '{"b+":1}'], ['{"c":1}']),
    ({"propertyNames": {"pattern": "^[a-z]+$"}}, ['{"a":1}'], ['{"A":1}']),
    (
        {**INTEGERS, "minProperties": 1, "maxProperties": 2},
        ['{"a":1}', '{"a":1,"b":2}'],
        ["{}", '{"a":1,"b":2,"c":3}'],
    ),
    ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, ['{"b":1}'], ["{}"]),
    ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, ['{"a":1}'], ['{"a":1,"b":1}']),
    ({"properties": {"größe": {}, 'q"': {}}, "required": ['q"']}, ['{"q\\"":2}'], ['{"q":1}']),
    # compositions
    ({"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 8}]}, ["3"], ["0", "9"]),
    (
        {
            "allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"$ref": "#/$defs/B"}],
            "$defs": B,
        },
        ['{"a":1,"b":"x"}'],
        ['{"a":1}', '{"a":1,"b":"x","c":1}', "3"],
    ),
    (
        {"properties": {"x": {}}, "$ref": "#/$defs/B", "$defs": B},
        ['{"x":1,"b":"q"}', '{"b":"q"}'],
        ['{"x":1}', '{"b":"q","z":1}'],
    ),
    (text(anyOf=[{"maxLength": 2}, {"const": "long"}]), ['"ab"', '"long"'], ['"abc"', "1"]),
    (
        {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'],
        ["{}", '{"a":1,"c":1}', "1"],
    ),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["null"]),
    ({"oneOf": [{"const": 1, "title": "one"}, {"const": 2}]}, ["1", "2"], ["3"]),
    ({"oneOf": [{"const": 1}, {"const": True}, {"const": "1"}]}, ["1", "true", '"1"'], ["0"]),
    (
        {"oneOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/D"}], "$defs": PETS},
        ['{"k":"c","n":1}', '{"k":"d"}'],
        ['{"k":"d","n":1}', '{"k":"e"}', '{"k":"c","m":1}'],
    ),
    (
        {"properties": {"id": {"type": "integer"}}, "oneOf": [named("1", "a"), named("2")]},
        ['{"id":1,"k":1,"a":2}', '{"k":2}'],
        ['{"k":2,"a":1}', '{"k":3}', '{"id":1}'],
    ),
    # references
    ({"$ref": "#/$defs/A", "minimum": 2, "$defs": {"A": {"type": "integer"}}}, ["2"], ["1", '"a"']),
    ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "null"}}}, ["null"], ["1"]),
    (
        {"$ref": "#/$defs/N", "$defs": NODE},
        ['{"next":{"next":null}}'],
        ['{"next":1}', '{"x":1}', '{"next":{"x":1}}'],
    ),
    (
        {"type": "object", "properties": {"kids": array(items={"$ref": "#"})}},
        ['{"kids":[{"kids":[]}]}'],
        ['{"kids":[1]}'],
    ),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}, ["1"], ["2"]),
    # between two tokens at most one blank or one line break, whatever a client says
    (
        {"properties": {"a": {}}, "x-guidance": {"whitespace_flexible": False}},
        ['{\n"a" : 1}', '{ "a":1}', '{"a":1}'],
        ['{\n "a":1}', '{  "a":1}', '{\n\n"a":1}', '{"a":\t1}', ' {"a":1}', '{"a":1}\n'],
    ),
]
PATTERNS: list[tuple[str, list[str], list[str]]] = [
    ("^a+$", ["a", "aa"], ["", "ba", "ab"]),
    ("a", ["a", "xay"], ["", "x"]),
    ("^a", ["a", "ab"], ["ba"]),
    ("^a$|^b$", ["a", "b"], ["ab"]),
    ("^a|z$", ["ab", "yz"], ["ba"]),
    ("^[^a]$", ["b", "é", '"', "\\"], ["a"]),
    ('^"$', ['"'], ["a"]),
    (r"^\\$", ["\\"], ["a"]),
    (r"^\s$", [" ", "\t", "\n"], ["a"]),
    (r"^\d\w\.$", ["1a."], ["aa.", "1a!", "١a."]),
    (r"^(?<year>\d{4})$", ["2026"], ["26"]),
    ("^.$", ["x", "日"], [""]),
    ("^[а-я]+$", ["да"], ["da"]),
    (r"^\p{Lu}$", ["A", "Ж"], ["a", "1"]),
    (r"^\u00e9\x41$", ["éA"], ["eA"]),
    ("^😀{2}$", ["😀😀"], ["😀"]),
    # in brackets `[`, `&&`, `--` and `~~` are plain characters, as in ECMAScript
    ("^[a-z&&[^b]]+$", ["b]", "&]", "[]]"], ["a", "b"]),
    ("^[^[]$", ["a", "&"], ["["]),
    ("^[+--]$", ["+", ",", "-"], ["*", "."]),
    ("^[a~~b]$", ["a", "~"], ["c"]),
    (r"^[\]&[]+$", ["]&["], ["a"]),
    (r"^\/a\-b$", ["/a-b"], ["a"]),
    ("(?i)^ab$", ["AB"], ["ac"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), ENFORCED, ids=lambda v: json.dumps(v)[:60])
def test_a_keyword_is_enforced(fits: Fixture, schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = schema_grammar(schema, "schema")
    assert [answer for answer in good + bad if fits(grammar, answer)] == good


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS)
def test_a_pattern_is_of_the_text_not_of_its_json(
    fits: Fixture, pattern: str, good: list[str], bad: list[str]
) -> None:
    grammar = schema_grammar({"type": "string", "pattern": pattern}, "schema")
    assert [word for word in good + bad if fits(grammar, json.dumps(word, ensure_ascii=False))] == (
        good
    )


REFUSED: list[Any] = [
    (3, "must be an object"),
    (False, "allows nothing"),
    ({"not": {}}, "not is not supported"),
    ({"if": {}}, "if is not supported"),
    ({"then": {}}, "then is not supported"),
    ({"else": {}}, "else is not supported"),
    (array(contains={}), "contains is not supported"),
    (array(minContains=1), "minContains is not supported"),
    (array(uniqueItems=True), "uniqueItems is not supported"),
    (array(unevaluatedItems=False), "unevaluatedItems is not supported"),
    ({"dependentRequired": {}}, "dependentRequired is not supported"),
    ({"dependentSchemas": {}}, "dependentSchemas is not supported"),
    ({"dependencies": {}}, "dependencies is not supported"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties is not supported"),
    ({"$dynamicRef": "#x"}, "$dynamicRef is not supported"),
    ({"properties": {"a": {}}, "propertyNames": {"pattern": "a"}}, "propertyNames"),
    ({"propertyNames": {"minLength": 2}}, "propertyNames"),
    ({**INTEGERS, "minProperties": 2}, "minProperties"),
    ({"properties": {"a": {}, "b": {}}, "minProperties": 2}, "minProperties"),
    ({"properties": {"a": {}, "b": {}}, "maxProperties": 1, **OPEN}, "min/maxProperties"),
    ({"minProperties": -1}, "minProperties"),
    ({"propertyNames": {"const": "a"}}, "propertyNames"),
    ({"propertyNames": False}, "propertyNames"),
    (array(maxContains=1), "maxContains is not supported"),
    ({"properties": 3}, "properties must be an object"),
    ({"patternProperties": {f"^{i}": {} for i in range(33)}}, "32 are supported"),
    ({"patternProperties": {"^a": {}, "a$": {}}}, "not disjoint"),
    ({"anyOf": []}, "anyOf is empty"),
    ({"oneOf": [False, False]}, "Unsatisfiable"),
    ({"anyOf": 3}, "list of schemas"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may overlap"),
    ({"oneOf": [{}, {"type": "number"}]}, "may overlap"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "may overlap"),
    ({"oneOf": [{"const": [1]}, {"const": [1.0]}]}, "may overlap"),
    ({"$ref": "http://example.com/x"}, "does not point into"),
    ({"$ref": "#/$defs/A"}, "points to nothing"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "never end"),
    ({"allOf": [{"$ref": "#"}, {"type": "object"}]}, "circular"),
    ({"multipleOf": 0}, "multipleOf must be more than 0"),
    ({"multipleOf": -0.5}, "multipleOf must be more than 0"),
    ({"multipleOf": 1.23456}, "multipleOf"),
    ({"multipleOf": 1e-30}, "multipleOf"),
    ({"type": "number", "minimum": 1e20}, "float range"),
    ({"type": "integer", "minimum": 0.25, "maximum": 0.75}, "no integer"),
    ({"exclusiveMinimum": "1"}, "'exclusiveMinimum'"),
    ({"multipleOf": 1_000_003}, "multipleOf"),
    ({"allOf": [{"multipleOf": 97}, {"multipleOf": 89}, {"multipleOf": 83}]}, "multipleOf"),
    ({"allOf": [{"multipleOf": 9_973}, {"multipleOf": 1.5}]}, "multipleOf"),
    ({"multipleOf": "a"}, "multipleOf"),
    ({"const": 2**60}, "beyond"),
    ({"enum": [{"a": [2**53 + 1]}]}, "beyond"),
    ({"type": "king"}, "king"),
    ({"type": 3}, "type must be"),
    ({"type": []}, "empty"),
    ({"enum": []}, "empty"),
    ({"enum": 3}, "enum must be"),
    ({"enum": ["a"], "type": "null"}, "incompatible"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "incompatible"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum (3) is greater"),
    ({"minimum": "a"}, "'minimum'"),
    (text(minLength=3, maxLength=2), "minLength (3) is greater"),
    (text(minLength=2.5), "'minLength'"),
    (text(pattern="["), "unclosed"),
    (text(pattern="(?=a)b"), "look-around"),
    (text(pattern=r"(a)\1"), "backreferences"),
    (text(pattern=r"\bx"), "lookarounds"),
    (text(pattern=3), "'pattern'"),
    (text(pattern=r"^\cA$"), "unrecognized escape"),
    (text(pattern="^[^]$"), "unclosed"),
    (text(maxLength="3"), "'maxLength'"),
    pytest.param(text(pattern="a?" * 5_000), "fuel", marks=pytest.mark.heavy),
    (array(minItems=1.5), "'minItems'"),
    (array(minItems=3, maxItems=2), "minItems (3) is greater"),
    ({"required": ["a"], "additionalProperties": False, "type": "object"}, "'a' is unsatisfiable"),
    ({"required": "a"}, "'required'"),
]


@pytest.mark.parametrize(("schema", "word"), REFUSED, ids=lambda v: json.dumps(v)[:60])
def test_what_cannot_be_enforced_is_refused(guide_of: Fixture, schema: Any, word: str) -> None:
    """llama.cpp#19051: a bad schema is a 400, never an unconstrained answer."""
    with pytest.raises((RequestError, InvalidGrammar)) as caught:
        guide_of(schema_grammar(schema, "schema"))
    assert word in str(caught.value)


def test_a_refusal_names_the_place() -> None:
    schema: Any = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {}}}}}
    with pytest.raises(RequestError) as caught:
        schema_grammar(schema, "response_format.json_schema.schema")
    assert caught.value.param == "response_format.json_schema.schema.properties.a.items"
    schema = {"anyOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"prefixItems": [{"if": 1}]}}}
    with pytest.raises(RequestError, match=r"schema \(#/\$defs/A\)\.prefixItems\[0\]") as caught:
        schema_grammar(schema, "schema")
    assert caught.value.param == "schema"


def doubled(num_levels: int) -> Any:
    """As in a billion laughs."""
    chain: Any = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(num_levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{num_levels}": {"properties": {"a": {}}}}}


def dense(num_nodes: int) -> Any:
    """Each refers to all after it."""
    graph: Any = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{j}"} for j in range(i + 1, num_nodes)]}
        for i in range(num_nodes - 1)
    }
    last: Any = {f"d{num_nodes - 1}": {"properties": {"a": {}}}}
    return {"allOf": [{"$ref": "#/$defs/d0"}, {}], "$defs": {**graph, **last}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{i}": {} for i in range(6000)}},
        {"allOf": [{"properties": {f"p{i}": {}}} for i in range(5000)]},
        {"oneOf": [{"const": i} for i in range(10_000)]},
        {"enum": ["x" * 1000 for _ in range(600)]},
        {"type": "string", "description": "x" * 600_000},
        {"enum": list(range(200_000))},
        {"$ref": "#/" + "x" * 2_000},
        dense(100),
    ],
    ids=["wide", "parts", "variants", "long", "described", "values", "pointer", "dense"],
)
def test_a_schema_that_costs_too_much_is_refused_by_its_size(schema: Any) -> None:
    with pytest.raises(RequestError) as caught:
        schema_grammar(schema, "schema")
    assert (caught.value.status, caught.value.param) == (400, "schema")


def test_a_schema_that_refers_to_itself_many_times_is_read_once(fits: Fixture) -> None:
    grammar = schema_grammar(doubled(40), "schema")
    assert len(grammar.schema) < 5000
    assert fits(grammar, '{"a":1}')
    assert not fits(grammar, '{"b":1}')


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


@examples(200)
@given(ANYTHING)
def test_whatever_is_sent_is_rewritten_or_refused(schema: Any) -> None:
    with suppress(RequestError):
        schema_grammar(schema, "schema")
