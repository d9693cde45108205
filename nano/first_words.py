"""What first requests are made of: places, numbers in words, days, and how SDKs write tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nano.words import Words

_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August September October November December".split()
# Words whose meaning counts, however rare they are in training.
MEANT = (*_SMALL, *_TENS, *_DAYS, *_MONTHS, *"umbrella raining rain sunny snow status temperature".split())
_SHORT = "SF|NYC|LA|DC|sf|nyc|la|NY|Philly|Vegas|berlin|paris|london|tokyo|oslo|rome".split("|")


def in_words(value: int) -> str:
    """Return a number below 100 as a word."""
    if value < len(_SMALL):
        return _SMALL[value]
    tens, ones = divmod(value, 10)
    return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")


def words_of(words: Words, count: int) -> list[str]:
    """Draw some words."""
    return [words.noun() for _ in range(count)]


def a_place(words: Words) -> str:
    """Draw a place as it is typed: a city, with its state or country, or its short name."""
    rng = words.rng
    style = rng.random()
    if style < 0.12:
        return rng.choice(_SHORT)
    if style < 0.3:
        second = words.place() if rng.random() < 0.5 else "".join(rng.choices("ABCDEFGHIKLMNOPRSTVWY", k=2))
        return f"{words.place()}, {second}"
    return words.place()


def long_number(words: Words) -> str:
    """Draw a number as it stands in an expression, at times with commas or decimals."""
    rng = words.rng
    style = rng.random()
    if style < 0.15:
        return f"{rng.randint(1000, 99_999_999):,}"
    if style < 0.25:
        return str(words.decimal())
    return str(rng.randint(1, rng.choice([9, 30, 99, 999, 99_999, 9_999_999, 99_999_999])))


def phone(words: Words) -> str:
    """Draw a telephone number."""
    rng = words.rng
    area, first, last = rng.randint(200, 999), rng.randint(200, 999), rng.randint(1000, 9999)
    return rng.choice([
        f"({area}) {first}-{last}", f"{area}-{first}-{last}", f"+1 {area} {first} {last}",
        f"{first}-{last}", f"{area}{first}{last}", f"+{rng.randint(20, 99)} {area} {first}{last}",
    ])  # fmt: skip


def phrase_of_day(words: Words) -> str:
    """Draw a day as it is said or written."""
    rng = words.rng
    day, month = rng.randint(1, 28), rng.choice(_MONTHS)
    return rng.choice([
        rng.choice(_DAYS), rng.choice(_DAYS), f"{month} {day}", f"{day} {month}", words.date(), "tomorrow",
        f"{rng.randint(1, 12):02}/{day:02}/{rng.randint(2024, 2030)}", f"{month} {day}, {rng.randint(2024, 2030)}",
        f"next {rng.choice(_DAYS)}", f"{month} {day}th",
    ])  # fmt: skip


def phrase_of_time(words: Words) -> str:
    """Draw a time as it is said or written."""
    rng = words.rng
    hour, minute = rng.randint(1, 12), rng.choice([0, 15, 30, 45])
    return rng.choice([f"{hour}:{minute:02} {rng.choice(['AM', 'PM'])}", words.time(), f"{hour}{rng.choice(['am', 'pm'])}", f"{hour} {rng.choice(['AM', 'PM'])}"])


_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list"}


def decorated(words: Words, name: str, description: str, params: Mapping[str, Any]) -> str:
    """Return a description, at times with what SDKs add: the signature or the docstring's rest."""
    rng = words.rng
    style = rng.random()
    types = {key: _TYPES[schema["type"]] for key, schema in params.items()}
    if style < 0.06:
        signature = ", ".join(f"{key}: {kind}" for key, kind in types.items())
        return f"{name}({signature}) -> {rng.choice(['str', 'float', 'int', 'dict'])}\n{description}"
    if style < 0.14 and description:
        rest = "\n".join(f"    {key} ({kind}): The {key}{rng.choice(['.', f' of the {words.noun()}.'])}" for key, kind in types.items())
        told = f"{description}\n\nArgs:\n{rest}" if rest else description
        return told + rng.choice(["", f"\n\nReturns:\n    {rng.choice(['str', 'dict'])}: {words.phrase(2, 5)}."])
    if style < 0.18 and description:
        return f"{description} {words.phrase(3, 8).capitalize()}."
    return description
