"""The ids that get a row of their own: common words in all their forms, digits, marks.

Names and words of the dialogues are made of these ids alone, so that a name held out from
training is new as a name but not in its pieces. Every other id shares one learned row.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from nano.names import (
    CITIES,
    HELD_OUT_CITIES,
    HELD_OUT_PEOPLE,
    HELD_OUT_VERBS,
    PEOPLE,
    VERBS,
)
from nano.tokens import decode, encode

# Ids grow with rarity, so a bound on the id is a bound on rarity.
_NUM_COMMON_IDS = 16_000
_NUM_WORDS = 5_000
_NUM_IDS_OF_NAMES = 30_000
# Lists whose every word is met; adding one changes the vocabulary and needs a new training.
_LISTS = ("about.txt", "held_out_tools.txt", "known_tools.txt", "unknown.txt")
_NAME = re.compile(r" ?[A-Z][a-z]+")
_PLAIN = re.compile(r" ?[A-Za-z]+|[0-9]{1,3}|[ -/:-@\[-`{-~\n]{1,4}|[_.@/-][A-Za-z]+")


@cache
def common_words() -> tuple[str, ...]:
    """Return the words that can be written in every form, commonest first."""
    words = (word for word in _words() if all(map(_is_met, _forms(word))))
    return tuple(word for word in words if is_copyable(word))


@cache
def met_ids() -> frozenset[int]:
    """Return the ids that names and words are made of."""
    met = {i for i in range(_NUM_COMMON_IDS) if _PLAIN.fullmatch(decode([i]))}
    met.update(range(256), *(encode(f"{n:0{width}}") for n in range(1000) for width in (1, 2, 3)))
    met.update(i for i in range(_NUM_IDS_OF_NAMES) if _NAME.fullmatch(decode([i])))
    for name in (*CITIES, *HELD_OUT_CITIES, *PEOPLE, *HELD_OUT_PEOPLE):
        met.update(encode(name), encode(" " + name), spaced_pieces(name))
    singles = (encode(form) for word in _words() for form in _all_forms(word))
    met.update(ids[0] for ids in singles if len(ids) == 1)
    met.update(*(encode(form) for word in _written_words() for form in _all_forms(word)))
    return frozenset(met)


@cache
def copyable_ids() -> tuple[int, ...]:
    """Return the met ids that are whole characters, sorted."""
    return tuple(i for i in sorted(met_ids()) if _PLAIN.fullmatch(decode([i])))


@cache
def all_words() -> tuple[str, ...]:
    """Return every word of one met id that can be written in the forms of a name."""
    texts = (decode([i]) for i in copyable_ids())
    words = dict.fromkeys(text.strip() for text in texts if re.fullmatch(r" ?[a-z]{3,12}", text))
    return tuple(word for word in words if is_copyable(word) and _is_met(f"_{word}"))


@cache
def capitalised() -> tuple[str, ...]:
    """Return every capitalised word of one met id that can be copied as a name."""
    texts = (decode([i]) for i in copyable_ids())
    names = dict.fromkeys(text.strip() for text in texts if _NAME.fullmatch(text))
    return tuple(name for name in names if len(name) > 2 and is_copyable(name))


def is_copyable(text: str) -> bool:
    """Say whether a writable text has the same pieces with and without a space before it.

    Any other word's pieces would have to be learnt by heart: ' Warsaw' is written 'Wars', 'aw'.
    """
    return is_writable(text) and len(encode(" " + text)) == len(spaced_pieces(text))


def is_writable(text: str) -> bool:
    """Say whether a text consists of met ids, at a line's start and after a space."""
    return _is_met(text) and _is_met(" " + text) and met_ids().issuperset(spaced_pieces(text))


def spaced_pieces(text: str) -> list[int]:
    """Return the ids to write `text` with when its source stood after a space.

    They are the source's own ids with the space taken off the first, so that copying is
    the same act for every word, however the vocabulary would cut it at the line's start.
    """
    first, *rest = encode(" " + text)
    return encode(decode([first])[1:]) + rest


def _is_met(text: str) -> bool:
    return met_ids().issuperset(encode(text))


@cache
def _words() -> tuple[str, ...]:
    texts = (decode([token_id]) for token_id in range(2 * _NUM_COMMON_IDS))
    words = (text[1:] for text in texts if re.fullmatch(r" [a-z]{3,12}", text))
    return tuple(dict.fromkeys(words))[:_NUM_WORDS]


@cache
def _written_words() -> frozenset[str]:
    texts = (Path(__file__).with_name(name).read_text() for name in _LISTS)
    found = {word.lower() for text in texts for word in re.findall(r"[A-Za-z]+", text)}
    return frozenset({*found, *VERBS, *HELD_OUT_VERBS})


def _all_forms(word: str) -> list[str]:
    return [*_forms(word), f"-{word}", f".{word}", f"@{word}"]


def _forms(word: str) -> list[str]:
    capital = word.capitalize()
    return [word, f" {word}", capital, f" {capital}", f"_{word}", word.upper()]
