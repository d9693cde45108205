"""Copies: whatever the vocabulary's cuts, they are the words they copy."""

from __future__ import annotations

import random

import pytest

from tools.nano import names
from tools.nano.spelling import (
    MAX_PIECES,
    UnspellableError,
    copied,
    copy_of,
    is_spaced,
    pieces,
    spelled,
)
from tools.nano.tokens import NUM_ORDINARY, decode, encode, text_of
from tools.nano.vocabulary import copyable_ids

pytestmark = pytest.mark.slow  # of use to those who train nano anew; what ships is tested apart


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("What is the weather in Warsaw?", "Warsaw"),
        ("Warsaw: is it raining?", "Warsaw"),
        ("a flight to New York, please", "New York"),
        ("how is São Paulo", "São Paulo"),
        ('call it "Printer is broken" please', "Printer is broken"),
        ("add 12.5 to it", "12.5"),
        ("write to anna.b@example.com.", "anna.b@example.com"),
        ("the wordsmith has a word", "smith"),  # within an id
    ],
)
def test_a_copy_is_what_it_copies(said: str, value: str) -> None:
    assert decode(copied(value, said)) == value


def test_every_listed_name_can_be_copied_wherever_it_stands() -> None:
    listed = (names.CITIES, names.HELD_OUT_CITIES, names.PEOPLE, names.HELD_OUT_PEOPLE)
    for name in (name for group in listed for name in group):
        assert decode(copied(name, f"in {name}, now")) == name
        assert decode(copied(name, name)) == name


def test_a_spelling_is_the_id_without_its_space() -> None:
    for token_id in random.Random(1).sample(copyable_ids(), 3000):
        text = text_of(token_id)
        assert decode(spelled(token_id)) == (text[1:] if is_spaced(token_id) else text)
        assert len(spelled(token_id)) <= MAX_PIECES
        assert pieces().issuperset(spelled(token_id))


def test_few_pieces_write_nearly_all_words() -> None:
    words = [i for i in range(NUM_ORDINARY) if is_spaced(i) and text_of(i)[1:].isalpha()]
    latin = [i for i in words if text_of(i).isascii()]
    assert len(pieces()) < 20_000
    assert sum(bool(spelled(i)) for i in latin) > 0.99 * len(latin)


def test_what_cannot_be_spelled_is_named() -> None:
    with pytest.raises(UnspellableError, match="東京"):
        copy_of(encode("東京"))
