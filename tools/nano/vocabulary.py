"""The words that dialogues are made of, from the vocabulary itself."""

from __future__ import annotations

import re
from functools import cache

from tools.nano.phrases import phrases
from tools.nano.spelling import MAX_PIECES, is_copyable, is_spaced, spelled
from tools.nano.tokens import NUM_ORDINARY, encode, text_of

_NUM_COMMON = 5_000


def stem(word: str) -> str:
    """Return a word without its case and, roughly, without its plural."""
    word = word.lower()
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word


@cache
def all_words() -> tuple[str, ...]:
    """Return every word of one id with a space in front, commonest first, no function words."""
    dull = frozenset(phrases("function words").train)
    found = (text_of(i)[1:] for i in range(NUM_ORDINARY) if is_spaced(i) and spelled(i))
    words = dict.fromkeys(word for word in found if re.fullmatch(r"[a-z]{3,12}", word))
    return tuple(word for word in words if word not in dull and is_copyable(word))


@cache
def common_words() -> tuple[str, ...]:
    """Return the commonest words."""
    return all_words()[:_NUM_COMMON]


@cache
def long_words() -> tuple[str, ...]:
    """Return the words that take as many pieces as can be."""
    return tuple(w for w in all_words() if len(spelled(encode(" " + w)[0])) == MAX_PIECES)


@cache
def capitalised() -> tuple[str, ...]:
    """Return every capitalised word of one id with a space in front: names and others."""
    found = (text_of(i)[1:] for i in range(NUM_ORDINARY) if is_spaced(i) and spelled(i))
    names = dict.fromkeys(word for word in found if re.fullmatch(r"[A-ZÀ-Þ][a-zß-ɏ]{2,}", word))
    return tuple(name for name in names if is_copyable(name))


@cache
def copyable_ids() -> tuple[int, ...]:
    """Return the ids that can be copied and are whole characters."""
    return tuple(i for i in range(NUM_ORDINARY) if text_of(i) and spelled(i))
