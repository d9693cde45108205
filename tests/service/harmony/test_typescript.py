"""JSON Schemas in the notation the model reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_harmony import DeveloperContent, HarmonyEncoding, Message, Role, ToolDescription

from service.conversation import Tool
from service.harmony.typescript import describe_tools, write_type
from tests.examples import any_text, examples


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def written(schema: Any, **root: Any) -> str:
    """The line (or lines) of one optional property `p`."""
    text = write_type({**object_of(p=schema), **root})
    return text.removeprefix("{\n").removesuffix("\n}")


# What the library gets right, we write the same way.
SIMPLE = {
    "no parameters": None,
    "empty schema": {},
    "no properties": {"type": "object", "properties": {}},
    "bare object": {"type": "object"},
    "basic types": object_of(
        a={"type": "string"}, b={"type": "integer"}, c={"type": "number"}, d={"type": "boolean"}
    ),
    "required": {**object_of(a={"type": "string"}, b={"type": "string"}), "required": ["b"]},
    "description": object_of(a={"type": "string", "description": "What it is."}),
    "title": object_of(a={"type": "string", "title": "A", "description": "What it is."}),
    "examples": object_of(a={"type": "string", "examples": ["x", "y"]}),
    "string enum": object_of(a={"type": "string", "enum": ["x", "y"], "default": "y"}),
    "defaults": object_of(
        a={"type": "string", "default": "x"},
        b={"type": "number", "default": 1.5},
        c={"type": "boolean", "default": True},
        d={"type": "array", "items": {"type": "string"}, "default": ["q"]},
        e={"type": ["integer", "null"], "default": None},
    ),
    "arrays": object_of(
        a={"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        b={"type": "array"},
    ),
    "nullable": object_of(a={"type": "string", "nullable": True}),
    "type list": object_of(a={"type": ["string", "integer"]}),
    "nested objects": object_of(
        a=object_of(b=object_of(c={"type": "string", "description": "deep"})),
        d={"type": "array", "items": object_of(e={"type": "boolean"})},
    ),
    "object description": {**object_of(a={"type": "string"}), "description": "All of it."},
    "oneOf": object_of(
        a={"oneOf": [{"type": "string"}, {"type": "number", "description": "a count"}]},
        b={"oneOf": [object_of(c={"type": "string"}), {"type": "boolean"}], "default": "x"},
    ),
    "unknown type": object_of(a={"type": "file"}, b={}),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_simple_schemas_are_written_as_the_library_does(
    name: str, library: HarmonyEncoding
) -> None:
    described = ToolDescription.new("f", "Do it.\nNow.", SIMPLE[name])
    content = DeveloperContent.new().with_function_tools([described])
    message = Message.from_role_and_content(Role.DEVELOPER, content)
    expected = library.decode(library.render(message))
    ours = describe_tools([Tool("f", "Do it.\nNow.", SIMPLE[name])])
    assert f"<|start|>developer<|message|>{ours}<|end|>" == expected


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "p?: string | null,"),
        (
            {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "p?: number | null, // default: null",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "p?:\n | string\n | number\n,"),
        ({"const": "fixed"}, 'p?: "fixed",'),
        ({"const": 3}, "p?: 3,"),
        ({"type": "integer", "enum": [1, 2, 3]}, "p?: 1 | 2 | 3,"),
        ({"enum": ["a", None, True]}, 'p?: "a" | null | true,'),
        ({"type": "string", "enum": ['say "hi"']}, 'p?: "say \\"hi\\"",'),
        (
            {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            'p?: ("a" | "b")[],',
        ),
        ({"type": ["array", "null"], "items": {"type": "string"}}, "p?: string[] | null,"),
        ({"allOf": [{"type": "string"}], "description": "D"}, "// D\np?: string,"),
        ({"type": "string", "description": "one\n\ntwo"}, "// one\n//\n// two\np?: string,"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "Record<string, number>"),
        ({"type": "object", "additionalProperties": True}, "Record<string, any>"),
        (
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
            "p?: [string, number],",
        ),
        (
            {"prefixItems": [{"type": "string"}], "items": {"type": "number"}},
            "p?: [string, ...number[]],",
        ),
        (True, "p?: any,"),
        (False, "p?: never,"),
        ({"not": {"type": "string"}}, "p?: any,"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "p?: number, // minimum: 1, maximum: 9"),
        ({"type": "string", "pattern": "^a\n$"}, 'p?: string, // pattern: "^a\\n$"'),
    ],
)
def test_meaning_the_library_drops_is_kept(schema: Any, line: str) -> None:
    assert line in written(schema)


def test_all_of_gathers_properties_and_required() -> None:
    parts = [
        {**object_of(a={"type": "string"}), "required": ["a"]},
        {**object_of(b={"type": "number"}), "required": ["b"]},
    ]
    assert write_type({"allOf": parts}) == "{\na: string,\nb: number,\n}"


def test_references_are_followed_with_their_descriptions() -> None:
    defs = {"City": {"type": "string", "enum": ["Oslo", "Rome"], "description": "A city."}}
    assert written({"$ref": "#/$defs/City"}, **{"$defs": defs}) == (
        '// A city.\np?: "Oslo" | "Rome",'
    )
    told = {"$ref": "#/$defs/City", "description": "Where from."}
    assert written(told, **{"$defs": defs}).startswith("// Where from.\n")
    assert written({"$ref": "#/definitions/a~1b"}, definitions={"a/b": {"type": "null"}}) == (
        "p?: null,"
    )


def test_a_recursive_schema_ends() -> None:
    node = object_of(name={"type": "string"}, children={"type": "array"})
    node["properties"]["children"]["items"] = {"$ref": "#/$defs/Node"}
    text = written({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": node}})
    assert "name?: string," in text
    assert "children?: any[]," in text
    assert write_type({"$ref": "#"}) == "any"


@pytest.mark.parametrize("ref", ["#/$defs/nowhere", "https://a.b/c", "#/properties/p/0", "#/a/9"])
def test_a_reference_to_nowhere_is_any(ref: str) -> None:
    assert written({"$ref": ref}, a=[1]) == "p?: any,"


def test_references_that_multiply_end_soon() -> None:
    """Each of 40 levels refers twice to the next: 2^40 types if written out."""
    defs = {
        f"d{i}": object_of(a={"$ref": f"#/$defs/d{i + 1}"}, b={"$ref": f"#/$defs/d{i + 1}"})
        for i in range(40)
    }
    text = write_type({"$ref": "#/$defs/d0", "$defs": defs})
    assert len(text) < 2_000_000


def test_deep_nesting_ends() -> None:
    schema: dict[str, Any] = {"type": "string", "default": []}
    for _ in range(3000):
        schema = {"type": "array", "items": schema, "allOf": [schema], "default": [schema]}
    assert "any" in write_type(schema)


def test_odd_property_names_are_quoted() -> None:
    assert write_type(object_of(**{"user-id": {"type": "string"}, "a\nb": True})) == (
        '{\n"user-id"?: string,\n"a\\nb"?: any,\n}'
    )


def test_a_property_named_like_a_keyword() -> None:
    schema = object_of(items={"type": "string"}, type={"type": "number"}, enum={"type": "null"})
    assert write_type(schema) == "{\nitems?: string,\ntype?: number,\nenum?: null,\n}"


def test_variants_keep_their_descriptions() -> None:
    variants = [{"type": "string", "description": "an\nid"}, {"type": "null"}, {"type": "number"}]
    assert written({"anyOf": variants, "description": "Who."}) == (
        "// Who.\np?:\n | string // an id\n | null\n | number\n,"
    )


KEYWORDS = (
    "type",
    "properties",
    "required",
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "enum",
    "const",
    "default",
    "description",
    "title",
    "examples",
    "nullable",
    "additionalProperties",
    "format",
    "minimum",
    "pattern",
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    any_text(max_size=5),
    st.sampled_from(("object", "array", "string", "null", "#", "#/$defs/a", "#/properties/a")),
)
json_values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*KEYWORDS, "a", "b"]), inner, max_size=5),
    ),
    max_leaves=25,
)
schemas = st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), json_values, max_size=6)


@examples(300)
@given(schemas, any_text(max_size=20))
def test_any_json_makes_a_declaration(schema: dict[str, Any], description: str) -> None:
    text = describe_tools([Tool("f", description, schema)])
    assert text.startswith("# Tools\n\n## functions\n\nnamespace functions {\n\n")
    assert text.endswith(") => any;\n\n} // namespace functions")
