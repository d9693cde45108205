"""The synthetic dialogues: repeatable, valid, and held-out where they claim to be."""

from __future__ import annotations

import json
import random
import re
from itertools import islice

import jsonschema
import pytest

from service.harmony.render import render
from tools.nano import names
from tools.nano.about import intents
from tools.nano.dialogues import KINDS, TRAIN_KINDS, Turn, Writer
from tools.nano.disguises import disguised, reworded
from tools.nano.first_minute import first_minute
from tools.nano.judge import judge
from tools.nano.made_up import make_tool
from tools.nano.phrases import phrases, sections
from tools.nano.quickstarts import held_out_texts, known_names
from tools.nano.requests import ask
from tools.nano.samples import make_sample, steps
from tools.nano.tokens import CALL, RETURN
from tools.nano.tools import listed_tools
from tools.nano.values import Param, Value, spoken
from tools.nano.vocabulary import stem
from tools.nano.words import Split, Words, is_held_out

pytestmark = pytest.mark.slow  # of use to those who train nano anew; what ships is tested apart

SPLITS: tuple[Split, Split] = ("train", "heldout")


def _turns(split: Split, num_dialogues: int, seed: int = 1) -> list[Turn]:
    writer = Writer(seed, split)
    return [turn for _ in range(num_dialogues) for turn in writer.dialogue()]


def test_same_seed_writes_the_same_dialogues() -> None:
    assert _turns("train", 40) == _turns("train", 40)
    assert _turns("train", 40) != _turns("train", 40, seed=2)


def test_a_seed_writes_every_kind() -> None:
    names_of = {"tools": {"call", "result"}, "first": {"call"}, "extract": {"record"}}
    for split, kinds in zip(SPLITS, (TRAIN_KINDS, KINDS), strict=True):
        wanted = set().union(*(names_of.get(kind, {kind}) for kind in kinds))
        assert {turn.kind for turn in _turns(split, 400)} == wanted


def test_steps_repeat_and_fit() -> None:
    first, again = (steps(5, first=0, stride=1, num_tokens=4800) for _ in range(2))
    for _ in range(12):
        step = next(first)
        assert step == next(again)
        assert 2 <= len(step) <= 3
        for batch in step:
            assert len(batch) == 1 or len(batch) * max(len(s.ids) for s in batch) <= 2400


def test_a_stride_skips_the_pools_of_others() -> None:
    def found(first: int, stride: int, num_steps: int) -> list[object]:
        return list(islice(steps(5, first, stride, num_tokens=2400), num_steps))

    whole, even, odd = found(0, 1, 24), found(0, 2, 24), found(1, 2, 1)
    assert whole[0] == even[0]
    assert odd[0] in whole
    assert odd[0] not in even


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
        assert len(set(offered)) == len(offered) <= 6  # one, one alike, four others
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


def test_names_are_drawn_from_their_own_side() -> None:
    train, heldout = (Words(random.Random(4), split) for split in SPLITS)
    listed = {*names.CITIES, *names.PEOPLE}
    listed_out = {*names.HELD_OUT_CITIES, *names.HELD_OUT_PEOPLE}
    for name in (draw() for draw in (train.place, train.person, train.made_up) * 700):
        assert name not in listed_out
        assert name in listed or not is_held_out(name)
    for name in (draw() for draw in (heldout.place, heldout.person, heldout.made_up) * 100):
        assert name in listed_out or (is_held_out(name) and name not in listed)


def test_nothing_held_out_reaches_training() -> None:
    turns = _turns("train", 1500)
    said = {turn.prompt.messages[-1].content for turn in turns}
    assert not said & {question for intent in intents() for question in intent.heldout}
    names_out = {*names.HELD_OUT_CITIES, *names.HELD_OUT_PEOPLE}
    values = [v for turn in turns if turn.request for v in turn.request.arguments.values()]
    assert not names_out & {value for value in values if isinstance(value, str)}
    listed, listed_out = ({spec.name for spec in listed_tools(split)} for split in SPLITS)
    offered = {tool.name for turn in turns for tool in turn.prompt.tools}
    assert not offered & listed_out
    assert not [name for name in offered - listed - known_names() if is_held_out(name)]


def test_no_training_dialogue_holds_a_text_of_the_quickstarts_that_are_held_out() -> None:
    for kind in ("first", "extract", "tools"):
        writer = Writer(9, "train", is_late=True)
        for turn in (turn for _ in range(400) for turn in writer.dialogue(kind)):
            said = {message.content for message in turn.prompt.messages if message.role == "user"}
            told = {tool.description for tool in turn.prompt.tools}
            assert not (said | told) & held_out_texts()


def test_sums_and_their_steps_are_right() -> None:
    words = Words(random.Random(5), "train")
    drawn = [found for found in (first_minute(words) for _ in range(1200)) if found.steps]
    assert len(drawn) > 60
    for found in drawn:
        for step in (*re.split(", ", found.steps.rstrip(".")), found.must_say):
            left, right = step.split(" = ")
            assert sum(map(int, left.split(" + "))) == int(right) <= 100


def test_the_two_sides_share_no_list() -> None:
    assert not set(names.CITIES) & set(names.HELD_OUT_CITIES)
    assert not set(names.PEOPLE) & set(names.HELD_OUT_PEOPLE)
    assert not set(names.VERBS) & set(names.HELD_OUT_VERBS)
    listed, listed_out = ({spec.name for spec in listed_tools(split)} for split in SPLITS)
    assert not listed & listed_out
    for intent in intents():
        assert not set(intent.train) & set(intent.heldout)


def test_the_two_sides_share_no_phrasing_but_articles() -> None:
    train = {phrase for section in sections().values() for phrase in section.train}
    heldout = {phrase for section in sections().values() for phrase in section.heldout}
    assert train & heldout <= {"", "the", "a", "my"}


def _stems(text: str) -> set[str]:
    return {stem(word) for word in re.findall(r"[^\W\d_]+", text)}


def test_a_disguised_tool_is_asked_for_in_its_own_words() -> None:
    words = Words(random.Random(6), "train")
    num_disguised = 0
    for spec in listed_tools("train") * 3:
        other = disguised(words, spec)
        request = ask(words, other)
        params = {param.name: param for param in other.params}
        assert request.tool == other.name
        assert set(request.arguments) <= set(params)
        for name, value in request.arguments.items():
            assert spoken(params[name], value).lower() in request.text.lower()
        if other is not spec:
            num_disguised += other.name != spec.name
            own = _stems(other.name.replace("_", " ")) | _stems(other.description)
            assert own & _stems(request.text), (other, request)
    assert num_disguised > len(listed_tools("train"))


def test_a_tool_described_in_other_words_is_asked_for_by_its_name() -> None:
    words = Words(random.Random(7), "train")
    tools = [(spec, reworded(words, spec)) for spec in listed_tools("train")]
    changed = [other for spec, other in tools if other is not spec]
    assert len(changed) > len(tools) / 2
    assert {bool(other.description) for other in changed} == {False, True}
    for other in changed:
        assert all(param.description for param in other.params)
        assert _stems(other.name.replace("_", " ")) & _stems(ask(words, other).text), other


def test_what_no_tool_fits_is_seldom_asked_in_the_words_of_a_listed_request() -> None:
    told = [text for spec in listed_tools("train") for text in spec.requests]
    bare = [re.sub(r"\[.*?\]", "", text).rstrip(".?! ") for text in told]
    said = [text for text in bare if len(re.sub(r"\{\w+\}", "", text).split()) > 2]
    known = re.compile("|".join(re.sub(r"\\{\w+\\}", ".+", re.escape(text)) for text in said), re.I)
    writer = Writer(3, "train")
    asked = [writer.dialogue("no_tool")[0].prompt.messages[-1].content for _ in range(400)]
    assert 0 < sum(bool(known.search(text)) for text in asked) < 0.18 * len(asked)


def test_a_made_up_tool_says_in_its_name_or_its_description_what_it_is_for() -> None:
    words = Words(random.Random(8), "train")
    told_by = {"name": 0, "description": 0, "both": 0}
    for spec in (make_tool(words) for _ in range(400)):
        in_name = stem(spec.thing.split()[0]) in _stems(re.sub("[_-]|(?=[A-Z])", " ", spec.name))
        in_description = stem(spec.thing.split()[0]) in _stems(spec.description)
        assert in_name or in_description, spec
        told_by["both" if in_name and in_description else "name" if in_name else "description"] += 1
    assert min(told_by.values()) > 10, told_by


def _asked(is_late: bool) -> list[tuple[str, Param, Value]]:
    """Return what was said, a parameter and its value, of tools that training makes up."""
    words = Words(random.Random(9), "train", is_late)
    asked = ((spec, ask(words, spec)) for spec in (make_tool(words) for _ in range(900)))
    return [
        (request.text.lower(), param, request.arguments[param.name])
        for spec, request in asked
        for param in spec.params
        if param.name in request.arguments
    ]


@pytest.mark.parametrize("is_late", [False, True])
def test_only_late_in_training_a_word_stands_without_its_parameter(is_late: bool) -> None:
    said = [(text, param.name) for text, param, _ in _asked(is_late) if param.kind == "word"]
    alone = [name.replace("_", " ").lower() not in text for text, name in said]
    assert any(alone) == is_late
    assert not all(alone)


@pytest.mark.parametrize("is_late", [False, True])
def test_only_late_in_training_quotes_hold_dull_words(is_late: bool) -> None:
    dull = set(phrases("function words").train)
    quoted = [str(value).split() for _, param, value in _asked(is_late) if param.kind == "quoted"]
    assert any(dull & set(words) for words in quoted) == is_late
    assert {param.kind for _, param, _ in _asked(is_late)}.issuperset({"phrase", "time"}) == is_late


def test_arguments_stand_in_the_users_words() -> None:
    for turn in _turns("heldout", 100):
        if turn.request:
            said = turn.prompt.messages[-1].content
            for value in turn.request.arguments.values():
                parts = value if isinstance(value, list) else [value]
                words = [p if isinstance(p, str) else json.dumps(p) for p in parts]
                assert all(word in said for word in words), turn
