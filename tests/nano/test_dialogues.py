"""The synthetic dialogues: repeatable, valid, and held-out where they claim to be."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from nano import names
from nano.about import intents
from nano.dialogues import BROAD, NATURAL, Turn, Writer
from nano.judge import judge
from nano.samples import make_sample, steps
from nano.tokens import CALL, RETURN
from nano.tools import known_tools
from nano.words import Split
from service.harmony.render import render

SPLITS: tuple[Split, Split] = ("train", "heldout")


def _turns(split: Split, num_dialogues: int, seed: int = 1) -> list[Turn]:
    writer = Writer(seed, split)
    return [turn for _ in range(num_dialogues) for turn in writer.dialogue()]


def test_same_seed_writes_the_same_dialogues() -> None:
    assert _turns("train", 40) == _turns("train", 40)
    assert _turns("train", 40) != _turns("train", 40, seed=2)


def test_steps_repeat_and_fit() -> None:
    first, again = (steps(5, 0, 2400, BROAD) for _ in range(2))
    for _ in range(12):
        step = next(first)
        assert step == next(again)
        for batch in step:
            assert len(batch) == 1 or len(batch) * max(len(s.ids) for s in batch) <= 800


def test_the_natural_mix_asks_mostly_for_the_listed_tools() -> None:
    listed = {tool.name for tool in known_tools("train")}

    def share(writer: Writer) -> float:
        calls = [writer.dialogue("tools")[0].request for _ in range(100)]
        return sum(call is not None and call.tool in listed for call in calls) / len(calls)

    assert share(Writer(1, "train", NATURAL)) > 0.7 > share(Writer(1, "train"))


@pytest.mark.parametrize("split", SPLITS)
def test_wanted_replies_meet_every_demand(split: Split) -> None:
    for turn in _turns(split, 150):
        verdict = judge(turn, turn.reply, is_stopped=True)
        assert verdict.is_valid, turn
        assert verdict.is_exact or verdict.is_said, turn


def test_reasoning_grows_with_the_effort() -> None:
    words: dict[str, list[int]] = {"low": [], "medium": [], "high": []}
    for turn in _turns("train", 150):
        verdict = judge(turn, turn.reply, is_stopped=True)
        words[verdict.effort].append(verdict.num_reasoning_words)
    low, medium, high = (sum(found) / len(found) for found in words.values())
    assert 2 < low < medium < high < 60


def test_offered_tools_have_valid_schemas_and_distinct_names() -> None:
    for turn in _turns("train", 150):
        offered = [tool.name for tool in turn.prompt.tools]
        assert len(set(offered)) == len(offered) <= 5
        for tool in turn.prompt.tools:
            jsonschema.Draft202012Validator.check_schema(tool.parameters or {})
        if turn.request:
            assert turn.request.tool in offered


def test_a_samples_learnt_tokens_are_the_replies() -> None:
    writer, rng = Writer(3, "train"), random.Random(3)
    for _ in range(60):
        turns = writer.dialogue()
        sample = make_sample(turns, rng)
        prompt = render(turns[0].prompt)
        learnt = [i for i, is_learnt in zip(sample.ids, sample.learn, strict=True) if is_learnt]
        assert sample.ids[-1] in (CALL, RETURN)
        assert learnt[-1] == sample.ids[-1]
        assert set(learnt) <= {token_id for turn in turns for token_id in turn.reply}
        if list(sample.ids[: len(prompt)]) == prompt:
            assert not any(sample.learn[: len(prompt)])


def test_nothing_held_out_reaches_training() -> None:
    # To be copied, words are drawn at random from the vocabulary, so all may occur there.
    turns = [turn for turn in _turns("train", 1500) if turn.kind != "copy"]
    said = [turn.prompt.messages[-1].content for turn in turns]
    offered = {tool.name for turn in _turns("train", 300) for tool in turn.prompt.tools}
    texts = " ".join(said)
    for held_out in (*names.HELD_OUT_CITIES, *names.HELD_OUT_PEOPLE):
        assert f" {held_out}." not in texts
    questions = {question for intent in intents() for question in intent.heldout}
    assert not questions & set(said)
    assert not {spec.name for spec in known_tools("heldout")} & offered


def test_the_two_sides_share_no_list() -> None:
    assert not set(names.CITIES) & set(names.HELD_OUT_CITIES)
    assert not set(names.PEOPLE) & set(names.HELD_OUT_PEOPLE)
    assert not set(names.VERBS) & set(names.HELD_OUT_VERBS)
    known, held_out = ({spec.name for spec in known_tools(split)} for split in SPLITS)
    assert not known & held_out
    for intent in intents():
        assert not set(intent.train) & set(intent.heldout)


def test_arguments_stand_in_the_users_words() -> None:
    for turn in _turns("heldout", 100):
        if turn.request:
            said = turn.prompt.messages[-1].content
            for value in turn.request.arguments.values():
                parts = value if isinstance(value, list) else [value]
                words = [p if isinstance(p, str) else json.dumps(p) for p in parts]
                assert all(word in said for word in words), turn
