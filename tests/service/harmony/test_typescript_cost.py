"""What describing a tool may cost: in proportion to its schema, and never more than a budget."""

from __future__ import annotations

from typing import Any

import pytest

from service.conversation import Tool, ToolTooLarge
from service.harmony import json_schema
from service.harmony.typescript import MAX_STEPS, describe_tools, write_type
from service.work import Budget, OverBudget

REFS = {f"d{i}": {"title": "a"} for i in range(4000)}
ALL_REFS = {"allOf": [{"$ref": f"#/$defs/{name}"} for name in REFS]}


def _parts(number: int) -> dict[str, Any]:
    part = [{"properties": {f"p{i}": {"type": "string"}}} for i in range(number)]
    return {"type": "object", "allOf": part}


def test_merging_copies_nothing_of_the_parts_before() -> None:
    """Eight times the parts took 64 times as long when each merge copied all before it."""
    gathered: list[object] = []

    class Noting(dict[str, Any]):
        def __setitem__(self, key: str, value: object) -> None:
            super().__setitem__(key, value)
            gathered.append(value)

    flat = Noting()
    budget = Budget(2_000, "steps")
    for part in _parts(500)["allOf"]:
        json_schema._merge_into(flat, part | {"required": [*part["properties"]]}, budget)
    assert {*map(type, gathered)} == {dict, list}
    assert len({*map(id, gathered)}) == 2
    assert all(len(found) == 500 for found in flat.values())


def test_merging_leaves_the_clients_schema_alone() -> None:
    schema = {"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]}
    write_type(schema)
    assert schema["allOf"][0] == {"properties": {"a": {}}, "required": ["a"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": REFS, "anyOf": [ALL_REFS] * 400},
        {"anyOf": [{"title": f"{i}"} for i in range(2000)], **_parts(0), "properties": REFS},
        {
            "$defs": {"d": {"description": "word " * 20_000}},
            "properties": {f"p{i}": {"$ref": "#/$defs/d"} for i in range(4000)},
        },
        {
            "$defs": {"d": {"enum": list(range(10_000))}},
            "properties": {f"p{i}": {"$ref": "#/$defs/d"} for i in range(4000)},
        },
    ],
    ids=["references", "variants", "descriptions", "enums"],
)
def test_what_is_small_to_send_and_large_to_write_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(OverBudget, match=f"more than {MAX_STEPS} steps"):
        write_type(schema)


def test_a_thousand_properties_are_far_from_the_budget() -> None:
    names = [f"property{i}" for i in range(1000)]
    schema = {"properties": {name: {"type": "string", "description": name} for name in names}}
    budget = Budget(MAX_STEPS, "steps")
    write_type(schema, budget)
    assert budget.spent < MAX_STEPS / 8


def test_all_tools_share_one_budget_and_the_one_it_ends_at_is_named() -> None:
    tools = [Tool(f"f{i}", "word " * 200_000) for i in range(20)]
    with pytest.raises(ToolTooLarge, match="'f7'"):
        describe_tools(tools)
