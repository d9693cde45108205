"""What people wish for first: each kind its own answer, in wordings that nothing measured holds."""

from __future__ import annotations

import random

import pytest

from tools.nano.dialogues import Writer
from tools.nano.first_messages import is_kept_out, messages
from tools.nano.first_minute import first_minute, laid_out
from tools.nano.further import said_pieces
from tools.nano.spelling import copy_of, pieces
from tools.nano.tokens import decode, encode
from tools.nano.wishes import product, tongues, wish_named, wishes, written
from tools.nano.words import Words

pytestmark = pytest.mark.slow  # of use to those who train nano anew; what ships is tested apart

FILES = ("first_messages.txt", "own_messages.txt", "typed_messages.txt")


def test_every_answer_is_written_with_pieces_and_is_its_own() -> None:
    known = (*wishes(), *product(), *tongues())
    for wish in known:
        ids = written(wish.answer)
        assert decode(ids) == wish.answer
        assert set(ids) <= pieces() & said_pieces()
        assert set(copy_of(encode(f" {wish.reasoned}."))) <= said_pieces()
    assert len({wish.answer for wish in known}) == len(known) == len({w.topic for w in known})


def test_one_way_to_word_a_wish_is_many() -> None:
    words = Words(random.Random(3), "train")
    for wish in (*wishes(), *product(), *tongues()):
        said = {wish.message(words) for _ in range(60)}
        assert len(said) > 15, wish.topic
        assert not [text for text in said if "[" in text and wish.topic != "code"], wish.topic


def test_other_languages_are_answered_in_them() -> None:
    found = {wish.topic: wish.answer for wish in tongues()}
    assert {"German", "French", "Spanish", "Italian", "Portuguese", "Japanese", "Chinese"} <= set(
        found
    )
    for answer in found.values():
        assert "nano" in answer
        assert "`harmonium serve gpt-oss-20b`" in answer


def test_no_training_dialogue_says_a_message_of_the_three_lists() -> None:
    listed = {message for name in FILES for message in messages(name)}
    assert len(listed) > 230
    assert all(map(is_kept_out, listed))
    writer = Writer(9, "train", is_late=True)
    for kind in ("minute", "chat", "copy", "unknown"):
        for turn in (turn for _ in range(500) for turn in writer.dialogue(kind)):
            said = {message.content for message in turn.prompt.messages if message.role == "user"}
            assert not {" ".join(text.split()) for text in said} & listed


def test_what_is_pasted_with_line_breaks_is_trained_and_measured_messages_are_not() -> None:
    assert is_kept_out("What can\nyou do?\r\n")
    words = Words(random.Random(5), "train")
    said = [first_minute(words).said for _ in range(400)]
    assert sum("\n" in text for text in said) > 15
    assert sum(text != text.strip() for text in said) > 5
    assert "\n" not in laid_out(Words(random.Random(5), "heldout"), "one two", share=1.0)


def test_the_reasoning_names_the_kind_before_the_answer() -> None:
    writer, seen = Writer(4, "train", is_late=True), set()
    for turn in (turn for _ in range(300) for turn in writer.dialogue("minute")):
        text = decode(turn.reply)
        for wish in (*wishes(), *product(), *tongues()):
            if f"The user {wish.reasoned}." in text:
                seen.add(wish.act)
                assert wish.answer in text
    assert seen == {"for", "about", "in"}


def test_a_wish_is_found_by_its_topic() -> None:
    assert "poems" in wish_named("a poem").answer
