"""What first requests are made of: phrases, places, numbers in words, days, expressions."""

from __future__ import annotations

from collections.abc import Sequence

from tools.nano.phrases import phrases
from tools.nano.words import Words

_SMALL = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen""".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = """January February March April May June July August September October November
December""".split()
# Words whose meaning counts, however rare they are in training.
MEANT = (*_SMALL, *_TENS, *_DAYS, *_MONTHS, *"umbrella raining rain sunny status weather".split())
_SHORT = """SF NYC LA DC sf nyc la NY Philly Vegas berlin paris london tokyo oslo rome""".split()
_STATES = "ABCDEFGHIKLMNOPRSTVWY"


def say(words: Words, section: str, **values: object) -> str:
    """Draw one of the phrasings of a section of first_calls.txt, and put values in."""
    drawn = words.rng.choice(phrases(section, "first_calls.txt").train)
    return drawn.format(**values) if values else drawn


def listed(parts: Sequence[str], last: str = ", and ") -> str:
    """Join parts as in a sentence."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])}{last}{parts[-1]}"


def in_words(value: int) -> str:
    """Return a number below 100 as a word."""
    if value < len(_SMALL):
        return _SMALL[value]
    tens, ones = divmod(value, 10)
    return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")


def a_place(words: Words) -> str:
    """Draw a place as it is typed: a city, with its state or country, or its short name."""
    rng = words.rng
    style = rng.random()
    if style < 0.12:
        return rng.choice(_SHORT)
    if style < 0.3:
        state = "".join(rng.choices(_STATES, k=2))
        return f"{words.place()}, {words.place() if rng.random() < 0.5 else state}"
    return words.place()


def an_expression(words: Words) -> str:
    """Draw an arithmetic expression, at times with a sum in brackets."""
    rng = words.rng
    terms = [_term(words) for _ in range(rng.choice([2, 2, 2, 3, 3, 4]))]
    if len(terms) > 2 and rng.random() < 0.4:
        at = rng.randrange(len(terms) - 1)
        terms[at : at + 2] = [f"({terms[at]} {rng.choice('+-*')} {terms[at + 1]})"]
    gap = "" if rng.random() < 0.15 else " "
    found = terms[0]
    for term in terms[1:]:
        found += f"{gap}{rng.choice('+-*/*+')}{gap}{term}"
    return found


def _term(words: Words) -> str:
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
    forms = [f"({area}) {first}-{last}", f"{area}-{first}-{last}", f"+1 {area} {first} {last}"]
    forms += [f"{first}-{last}", f"{area}{first}{last}", f"+{rng.randint(20, 99)} {area} {last}"]
    return rng.choice(forms)


def phrase_of_day(words: Words) -> str:
    """Draw a day as it is said or written."""
    rng = words.rng
    day, month, year = rng.randint(1, 28), rng.choice(_MONTHS), rng.randint(2024, 2030)
    named = rng.choice(_DAYS)
    forms = [named, named, f"{month} {day}", f"{day} {month}", words.date(), "tomorrow"]
    forms += [f"{rng.randint(1, 12):02}/{day:02}/{year}", f"{month} {day}, {year}"]
    return rng.choice([*forms, f"next {named}", f"{month} {day}th"])


def phrase_of_time(words: Words) -> str:
    """Draw a time as it is said or written."""
    rng = words.rng
    hour, half = rng.randint(1, 12), rng.choice(["am", "pm"])
    forms = [f"{hour}:{rng.choice(['00', '15', '30', '45'])} {half.upper()}", words.time()]
    return rng.choice([*forms, f"{hour}{half}", f"{hour} {half.upper()}"])
