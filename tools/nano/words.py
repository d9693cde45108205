"""Words and made-up names; names are split once and for all into training and held out.

A made-up name is held out when its CRC falls on one residue, a real name or a phrasing when
a list says so. Names, listed tools and listed phrasings of one side are never drawn for the
other; the words they are made of occur on both sides, and words drawn at random around a
request may by chance stand as in a phrasing that is held out.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar
from zlib import crc32

from tools.nano.names import CITIES, HELD_OUT_CITIES, HELD_OUT_PEOPLE, PEOPLE
from tools.nano.phrases import phrases
from tools.nano.spelling import is_copyable
from tools.nano.vocabulary import all_words, capitalised, common_words, long_words

Split = Literal["train", "heldout"]
T = TypeVar("T")

_HELD_OUT_EVERY = 8
_LONG_SHARE = 0.2
# Of the words in quotes, in training's last part.
_QUOTED_NUMBER_SHARE = 0.1
_QUOTED_DULL_SHARE = 0.35

# What the other side lists and a made-up name must therefore not be.
_OTHERS: Mapping[Split, frozenset[str]] = {
    "train": frozenset(
        word for name in (*HELD_OUT_CITIES, *HELD_OUT_PEOPLE) for word in name.split(" ")
    ),
    "heldout": frozenset((*CITIES, *PEOPLE)),
}
_ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t th tr v w z".split()
_VOWELS = "a e i o u ai ea ee ia io ou".split()
_CODAS = "b ck d g k l ll m n nd r rd rn s ss st t th x".split() + [""] * 8
_ENDINGS = [*"ton ville berg ford ham mar dale stad ia ov sen ez".split(), ""]
_PREFIXES = ["San", "New", "Port", "Saint", "Lake", "North", "East"]


def is_held_out(text: str) -> bool:
    """Say whether a made-up name belongs to the held-out side."""
    return crc32(text.lower().encode()) % _HELD_OUT_EVERY == 0


@dataclass(frozen=True, slots=True)
class Words:
    """Draws words of one side of the split."""

    rng: random.Random
    split: Split
    is_late: bool = False  # training's last part: values also stand alone, or are of any words

    def choose(self, train: Sequence[T], heldout: Sequence[T]) -> T:
        """Draw from this side's list."""
        return self.rng.choice(train if self.split == "train" else heldout)

    def say(self, section: str) -> str:
        """Draw one of this side's phrasings of a section of phrases.txt."""
        return self.choose(*phrases(section))

    def opening(self, section: str) -> str:
        """Draw what comes before a request and does not matter; in training also any word."""
        if self.split == "train" and self.rng.random() < 0.25:
            return self.noun().capitalize() + self.rng.choice([", ", ": ", "! ", ". ", " "])
        return self.say(section)

    def noun(self) -> str:
        """Draw a word: a common one or any other; in training more of those in three pieces."""
        if self.split == "train" and self.rng.random() < _LONG_SHARE:
            return self.rng.choice(long_words())
        return self.rng.choice(common_words() if self.rng.random() < 0.5 else all_words())

    def filler(self, share: float) -> str:
        """Draw words that say nothing, in a share of the training's cases, else an empty text.

        They teach that a request is known by what it has in common with a tool.
        """
        if self.split == "heldout" or self.rng.random() > share:
            return ""
        drawn = self.rng.choices(
            phrases("function words").train, k=self.rng.choice([1, 1, 2, 2, 3, 4])
        )
        if self.rng.random() < 0.3:
            drawn[self.rng.randrange(len(drawn))] = self.noun()
        return " ".join(drawn)

    def phrase(self, least: int, most: int) -> str:
        """Draw a few common words."""
        return " ".join(self.noun() for _ in range(self.rng.randint(least, most)))

    def quote(self, least: int, most: int) -> str:
        """Draw what stands in quotes: a few words, in training's last part of any kind."""
        if not self.is_late:
            return self.phrase(least, most)
        return " ".join(self._any_word() for _ in range(self.rng.randint(least, most)))

    def _any_word(self) -> str:
        style = self.rng.random()
        if style < _QUOTED_NUMBER_SHARE:
            return str(self.number())
        is_dull = style < _QUOTED_NUMBER_SHARE + _QUOTED_DULL_SHARE
        return self.rng.choice(phrases("function words").train) if is_dull else self.noun()

    def made_up(self) -> str:
        """Draw a capitalised name that no list holds."""
        return self._new_name(self._part)

    def place(self) -> str:
        """Draw a city, real or made up, of one or two words."""
        if self.rng.random() < 0.25:
            return self.choose(CITIES, HELD_OUT_CITIES)
        if self.rng.random() < 0.2:
            return self._new_name(lambda: f"{self.rng.choice(_PREFIXES)} {self._part()}")
        return self.made_up()

    def person(self) -> str:
        """Draw a person's name, real or made up, of one or two words."""
        if self.rng.random() < 0.25:
            return self.choose(PEOPLE, HELD_OUT_PEOPLE)
        if self.rng.random() < 0.4:
            return self._new_name(lambda: f"{self._part()} {self._part()}")
        return self.made_up()

    def _new_name(self, draw: Callable[[], str]) -> str:
        """Draw until a name is of this side of the split; its parts may occur on both."""
        while True:
            name = draw()
            is_other_sides = is_held_out(name) != (self.split == "heldout")
            is_other_sides = is_other_sides or name in _OTHERS[self.split]
            if not is_other_sides and is_copyable(name):
                return name

    def _part(self) -> str:
        style = self.rng.random()
        return self._syllables() if style < 0.35 else self._pieces(is_any=style > 0.6)

    def email(self) -> str:
        """Draw an e-mail address."""
        return self._writable(self._email)

    def code(self) -> str:
        """Draw an order number, a licence plate or the like."""
        return self._writable(self._code)

    def ticker(self) -> str:
        """Draw the symbol of a stock."""
        letters = string.ascii_uppercase
        return self._writable(lambda: "".join(self.rng.choices(letters, k=self.rng.randint(3, 4))))

    def _writable(self, draw: Callable[[], str]) -> str:
        return next(text for text in iter(draw, None) if is_copyable(text))

    def _email(self) -> str:
        name = self.rng.choice([self.noun(), self.made_up().lower()])
        host = self.rng.choice(["example", "mail", self.noun()])
        return f"{name}@{host}.{self.rng.choice(['com', 'org', 'net'])}"

    def _code(self) -> str:
        letters = "".join(self.rng.choices(string.ascii_uppercase, k=self.rng.randint(1, 3)))
        digits = str(self.rng.randint(10, 99_999))
        return self.rng.choice([f"{letters}-{digits}", f"{letters}{digits}", digits])

    def number(self) -> int:
        """Draw a whole number; small ones are likelier."""
        return self.rng.randint(0, self.rng.choice([12, 99, 999, 9999, 999_999]))

    def decimal(self) -> float:
        """Draw a number with one or two decimals."""
        digits = self.rng.choice([1, 2])
        return round(self.rng.uniform(0.5, self.rng.choice([10, 100, 1000])), digits)

    def time(self) -> str:
        """Draw a time of the day as HH:MM."""
        return f"{self.rng.randint(0, 23):02}:{self.rng.randint(0, 59):02}"

    def date(self) -> str:
        """Draw a date as YYYY-MM-DD."""
        rng = self.rng
        return f"{rng.randint(2023, 2031)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"

    def _syllables(self) -> str:
        rng = self.rng
        parts = (
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
            for _ in range(rng.choice([1, 2, 2, 3]))
        )
        return ("".join(parts) + rng.choice(_ENDINGS)).capitalize()

    def _pieces(self, is_any: bool) -> str:
        name = self.rng.choice(capitalised() if is_any else common_words()).capitalize()
        return name + self.rng.choice(_ENDINGS) if self.rng.random() < 0.4 else name
