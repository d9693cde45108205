"""The tools as others describe them: each request can be answered from its own words."""

from __future__ import annotations

import jsonschema
import pytest

from tools.nano.dialogues import Turn
from tools.nano.judge import judge
from tools.nano.others import other_turns

pytestmark = pytest.mark.slow  # of use to those who train nano anew; what ships is tested apart


def test_the_wanted_call_is_the_tools_and_its_values_the_users() -> None:
    for turn in other_turns():
        check(turn)


def check(turn: Turn) -> None:
    assert turn.request is not None
    (tool,) = turn.prompt.tools
    assert turn.request.tool == tool.name
    jsonschema.validate(turn.request.arguments, tool.parameters or {})
    assert turn.request.arguments.keys() <= (tool.parameters or {})["properties"].keys()
    said = turn.request.text
    assert all(str(value) in said for value in turn.request.arguments.values())
    verdict = judge(turn, turn.reply, is_stopped=True)
    assert (verdict.is_valid, verdict.is_exact) == (True, True), said  # nano can spell it


def test_a_parameter_is_told_by_a_description_or_a_schema() -> None:
    turn = next(t for t in other_turns() if t.prompt.tools[0].name == "get_exchange_rate")
    assert turn.prompt.tools[0].parameters == {
        "type": "object",
        "properties": {
            "currency": {"type": "string", "description": "Currency code, e.g. USD"},
            "date": {"type": "string", "description": "Date, e.g. 2024-01-31"},
        },
        "required": ["currency"],
    }
