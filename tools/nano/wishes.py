"""What people wish for first and nano cannot do, what they ask about the service, other languages.

The files hold an answer for each kind of wish and the ways to word it; a way is written with
alternatives, "[write/compose] a poem[ about {n}/]", so that one line is many wordings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tools.nano.phrases import phrases
from tools.nano.spelling import pieces
from tools.nano.tokens import SPACE, text_of
from tools.nano.words import Words

TAIL: Final = "gpt-oss-20b can: `harmonium serve gpt-oss-20b`."
_ALTERNATIVES: Final = re.compile(r"\[([^\[\]]*)\]")
_SLASH: Final = "\u2215"  # stands for a slash that parts no alternatives
_TOPIC_SHARE: Final = 0.35
_WORDS_SHARE: Final = 0.45  # of a language's messages: any of its words
_UNSPACED: Final = ("Japanese", "Chinese")


@dataclass(frozen=True, slots=True)
class Wish:
    """A kind of wish: what the reasoning calls it, its answer, ways to word it."""

    act: str  # for, about or in: asks for a poem, asks about TLS, writes in German
    topic: str
    answer: str
    forms: tuple[str, ...]
    listed: tuple[str, ...]  # names of the topic, or words of the language

    def message(self, words: Words) -> str:
        """Word the wish; places of words to be drawn are left open."""
        rng = words.rng
        if self.act == "in" and rng.random() < _WORDS_SHARE:
            gap = "" if self.topic in _UNSPACED else " "
            return gap.join(rng.choices(self.listed, k=rng.randint(2, 8))) + rng.choice(
                ["", "", "?", "."]
            )
        if self.act != "in" and self.listed and rng.random() < _TOPIC_SHARE:
            form = rng.choice(phrases("topics", "first_phrases.txt").train)
            return form.replace("{t}", rng.choice(self.listed))
        drawn = rng.choice(self.forms)
        while "[" in drawn and _ALTERNATIVES.search(drawn):
            drawn = _ALTERNATIVES.sub(lambda m: rng.choice(m[1].split("/")), drawn)
        return " ".join(drawn.split()).replace(_SLASH, "/")

    @property
    def reasoned(self) -> str:
        """What follows "The user" in the reasoning."""
        return f"writes in {self.topic}" if self.act == "in" else f"asks {self.act} {self.topic}"


def wishes() -> tuple[Wish, ...]:
    """What nano cannot do, and small talk."""
    return _read("wishes.txt")


def product() -> tuple[Wish, ...]:
    """Questions about the service beyond about.txt."""
    return _read("product.txt")


def tongues() -> tuple[Wish, ...]:
    """Messages in other languages."""
    return _read("tongues.txt")


def wish_named(topic: str) -> Wish:
    """Return what wishes.txt holds of a topic."""
    return next(wish for wish in wishes() if wish.topic == topic)


@cache
def _read(name: str) -> tuple[Wish, ...]:
    text = Path(__file__).with_name(name).read_text()
    return tuple(_parse(block) for block in re.split(r"^= ", text, flags=re.MULTILINE)[1:])


def _parse(block: str) -> Wish:
    head, *lines = block.splitlines()
    *named, answer = (part.strip() for part in head.split(" | "))
    act, topic = named if len(named) == 2 else ("in", *named)
    forms = tuple(line for line in lines if line and line[:2] != "* ")
    listed = " ".join(line[2:] for line in lines if line[:2] == "* ")
    answer = answer.removesuffix("+") + TAIL if answer.endswith("+") else answer
    split = listed.split() if act == "in" else listed.split("|")
    return Wish(act, topic, answer, forms, tuple(filter(None, split)))


def texts() -> str:
    """All that the files ask and answer: the meaning of their words counts."""
    known = (*wishes(), *product(), *tongues())
    parts = (
        part for wish in known for part in (wish.topic, wish.answer, *wish.forms, *wish.listed)
    )
    return re.sub(r"\[|\]|/|{\w}", " ", " ".join(parts))


def answers() -> tuple[str, ...]:
    """All answers."""
    return tuple(wish.answer for wish in (*wishes(), *product(), *tongues()))


def reasonings() -> tuple[str, ...]:
    """All that the reasoning calls a wish: the words that decide the answer."""
    return tuple(f"{wish.reasoned}." for wish in (*wishes(), *product(), *tongues()))


def written(text: str) -> list[int]:
    """Return the ids that write any text: the longest pieces, else the bytes of a character."""
    ids: list[int] = []
    for word in re.split("( )", text):
        if word == " ":
            ids.append(SPACE)
            continue
        at = 0
        while at < len(word):
            found = next(
                (word[at:end] for end in range(len(word), at, -1) if word[at:end] in _by_text()), ""
            )
            ids += [_by_text()[found]] if found else _by_bytes(word[at])
            at += len(found) or 1
    return ids


@cache
def _by_text() -> dict[str, int]:
    return {text_of(i): i for i in sorted(pieces(), reverse=True) if text_of(i)}


def _by_bytes(character: str) -> list[int]:
    """The first 256 ids are the bytes: those that print, then all others, as GPT-2 orders them."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printed + [byte for byte in range(256) if byte not in printed]
    return [order.index(byte) for byte in character.encode()]
