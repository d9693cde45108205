"""Words and made-up names, split once and for all into training and held out.

A word, name or phrasing is held out when its CRC falls on one residue, or when a list
says so; nothing held out ever reaches a training dialogue.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar
from zlib import crc32

from nano.names import CITIES, HELD_OUT_CITIES, HELD_OUT_PEOPLE, PEOPLE
from nano.vocabulary import common_words, is_writable

Split = Literal["train", "heldout"]
T = TypeVar("T")

_HELD_OUT_EVERY = 8

_LISTED = frozenset(
    word for name in (*HELD_OUT_CITIES, *HELD_OUT_PEOPLE) for word in name.split(" ")
)
_ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t th tr v w z".split()
_VOWELS = "a e i o u ai ea ee ia io ou".split()
_CODAS = "b ck d g k l ll m n nd r rd rn s ss st t th x".split() + [""] * 8
_ENDINGS = [
    "ton",
    "ville",
    "berg",
    "ford",
    "ham",
    "mar",
    "dale",
    "stad",
    "ia",
    "ov",
    "sen",
    "ez",
    "",
]


def is_held_out(text: str) -> bool:
    """Say whether a made-up word belongs to the held-out side."""
    return crc32(text.lower().encode()) % _HELD_OUT_EVERY == 0


@cache
def _split_words(split: Split) -> tuple[str, ...]:
    held_out = split == "heldout"
    return tuple(word for word in common_words() if is_held_out(word) == held_out)


@dataclass(frozen=True, slots=True)
class Words:
    """Draws words of one side of the split."""

    rng: random.Random
    split: Split

    def choose(self, train: Sequence[T], heldout: Sequence[T]) -> T:
        """Draw from this side's list."""
        return self.rng.choice(train if self.split == "train" else heldout)

    def noun(self) -> str:
        """Draw a common word."""
        return self.rng.choice(_split_words(self.split))

    def phrase(self, least: int, most: int) -> str:
        """Draw a few common words."""
        return " ".join(self.noun() for _ in range(self.rng.randint(least, most)))

    def made_up(self) -> str:
        """Draw a capitalised name that no list holds."""
        while True:
            name = self._syllables() if self.rng.random() < 0.5 else self._pieces()
            is_other_sides = is_held_out(name) != (self.split == "heldout") or name in _LISTED
            if not is_other_sides and is_writable(name):
                return name

    def place(self) -> str:
        """Draw a city, real or made up, of one or two words."""
        if self.rng.random() < 0.25:
            return self.choose(CITIES, HELD_OUT_CITIES)
        name = self.made_up()
        if self.rng.random() < 0.2:
            prefix = self.rng.choice(["San", "New", "Port", "Saint", "Lake", "North", "East"])
            return f"{prefix} {name}"
        return name

    def person(self) -> str:
        """Draw a person's name, real or made up, of one or two words."""
        if self.rng.random() < 0.25:
            return self.choose(PEOPLE, HELD_OUT_PEOPLE)
        return f"{self.made_up()} {self.made_up()}" if self.rng.random() < 0.4 else self.made_up()

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
        return next(text for text in iter(draw, None) if is_writable(text))

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

    def _pieces(self) -> str:
        name = self.rng.choice(common_words()).capitalize()
        return name + self.rng.choice(_ENDINGS) if self.rng.random() < 0.4 else name
