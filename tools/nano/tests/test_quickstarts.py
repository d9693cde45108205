"""The published quickstart examples: which are held out, what is right, what nano answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import jsonschema
import pytest

from service.harmony.render import render
from tools.nano.asking import config_for
from tools.nano.judge import Written
from tools.nano.quickstart_report import grammar_of, is_right, measure
from tools.nano.quickstarts import ANY, Quickstart, held_out, quickstarts

EXAMPLES = {one.id: one for one in quickstarts()}


def _written(one: Quickstart, values: dict[str, object]) -> Written:
    text = json.dumps(values)
    calls = ((one.call, text),) if one.call else ()
    return Written("I think.", "" if one.call else text, calls, is_clean=True)


def _wanted(one: Quickstart) -> dict[str, object]:
    return {key: wishes[0] for key, wishes in one.values.items() if wishes[0] != ANY}


def _free(one: Quickstart) -> dict[str, object]:
    """Values of what the request does not tell."""
    tool = next((tool for tool in one.prompt.tools if tool.name == one.call), None)
    fields = (tool.parameters or {}).get("properties", {}) if tool else {}
    return {key: fields[key]["enum"][0] for key, wishes in one.values.items() if wishes == [ANY]}


def test_half_of_forty_are_held_out_and_no_text_stands_on_both_sides() -> None:
    assert len(EXAMPLES) == 40
    assert len(held_out()) == 20
    texts = {side: set[str]() for side in (True, False)}
    for one in EXAMPLES.values():
        texts[one.id in held_out()] |= one.texts
    assert not texts[True] & texts[False]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_sensible_answer_is_right_and_another_is_not(name: str) -> None:
    one = EXAMPLES[name]
    answer = {**_wanted(one), **_free(one)}
    assert is_right(one, _written(one, answer))
    assert not is_right(one, _written(one, {**answer, "more": 1}))
    for key in _wanted(one):
        assert not is_right(one, _written(one, {**answer, key: "something else"}))
    assert not is_right(one, Written("I think.", "Hello!", (), is_clean=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_can_be_sent(name: str) -> None:
    for prompt in EXAMPLES[name].ways():
        assert render(prompt)
        grammar_of(EXAMPLES[name], prompt)
        for tool in prompt.tools:
            jsonschema.Draft202012Validator.check_schema(tool.parameters or {})


@pytest.mark.slow
def test_most_of_the_held_out_half_is_answered_right(nano_checkpoint: Path, tmp_path: Path) -> None:
    kept = [one for one in quickstarts() if one.id in held_out()]
    found = asyncio.run(measure(config_for(nano_checkpoint, "cpu"), tmp_path, kept))
    wrong = {name: answers for name, answers in found.items() if answers}
    assert len(wrong) <= 0.1 * len(kept), wrong
