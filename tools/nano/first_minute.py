"""What people type first: names, sums, a few things by heart, and what nano cannot do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.nano.about import UNKNOWN
from tools.nano.spelling import copy_of
from tools.nano.tokens import SPACE, encode
from tools.nano.words import Words

HINT = "Try: What can you do?"
NO_JSON = '{"error":"I am a demonstration model"}'
_MOST = 100  # of a sum
_SUMS = (
    "What is {a}+{b}?", "What is {a} + {b}?", "What is {a} plus {b}?", "{a}+{b}", "{a} + {b}",
    "{a}+{b}=", "{a} + {b} =", "{a}+{b}?", "What's {a} + {b}?", "What's {a} plus {b}?",
    "How much is {a} + {b}?", "Calculate {a} + {b}.", "Add {a} and {b}.", "what is {a} plus {b}",
)  # fmt: skip
_NAMED = (
    "Hello, my name is {h}!", "Hi, my name is {h}.", "Hi! I'm {h}.", "my name is {h}", "I'm {h}",
    "Hey, I am {h}!", "Hello! My name is {h}.", "Hello, I'm {h}", "Good morning, I am {h}.",
)  # fmt: skip
_NAMELESS = ("What is my name?", "what's my name", "Do you know my name?", "Who am I?")
_LANGUAGES = "French German Spanish Italian English Latin Japanese Greek".split()
_CANNOT = (
    "Write a {l} function that {n}s a {n}", "Write a Python function that {n}s {n}.",
    "Write a Python script that {n}s a {n}", "Write code that {n}s a {n}", "Write a {n} about {n}.",
    "Write an email to {h} about {n}.", "Write an essay about {n}", "Write a poem about {n}",
    "Write a letter to {h}", "Write a SQL query for {n}", "Translate '{q}' into {l}",
    'Translate "{q}" to {l}.', "Translate {q} into {l}", "How do you say {q} in {l}?",
    "Say {q} in {l}", "Summarize this: {q}", "Summarize the {n} in one sentence.",
    "Summarize: {q}", "Explain {n} like I am five.", "Explain {n} in simple words", "Fix this: {q}",
    "What time is it?", "What time is it in {p}?", "What is the time?", "what time is it now",
    "What is the weather?", "What's the weather in {p}?", "How is the weather today?", "weather",
    "Who is the president of {p}?", "Recommend a {n}.", "Plan a trip to {p}.", "Plan a {n} in {p}",
    "Give me ideas for {n}.", "List five {n}s.", "Name a {n}.", "Is {n} a {n}?", "Solve {n}",
    "Draw a {n}.", "Sing a song about {n}", "Make a table of {n} and {n}", "Rewrite this: {q}",
    "Correct this sentence: {q}", "What is {d} times {d}?", "What is {d} minus {d}?",
    "What is {d} divided by {d}?", "Solve {d}x + {d} = {d}", "Tell me a story about {n}.",
    "Tell me about {n}", "What do you think of {n}?", "Continue: {q}", "Define {n}.",
    "Reverse the string {q}", "Give me a synonym of {n}", "Compare {n} and {n}.",
)  # fmt: skip
_AS_JSON = (
    "Give me a {n} as JSON", "Give me a person as JSON.", "Return a {n} as JSON", "Say hi in JSON",
    "Say {q} in JSON", "Write {n} in JSON", "A {n} in JSON, please", "Answer in JSON: {n}",
    "Generate JSON for a {n}", "Describe a {n} as a JSON object.", "Output JSON",
    "List three {n}s as JSON", "Give me a JSON object with {n} and {n}.", "JSON please",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Said:
    """A first message, the ids of its answer, and what of it is judged."""

    said: str
    ids: tuple[int, ...]
    must_say: str
    is_known: bool = True


@cache
def _by_heart() -> tuple[tuple[str, tuple[str, ...]], ...]:
    lines = Path(__file__).with_name("first_minute.txt").read_text().splitlines()
    parts = (line.split(" | ") for line in lines if line and line[0] != "#")
    return tuple((answer.replace(" / ", "\n"), tuple(asked)) for answer, *asked in parts)


def texts() -> str:
    """All that is asked and answered in set words: their meaning counts."""
    known = " ".join(f"{answer} {' '.join(asked)}" for answer, asked in _by_heart())
    return " ".join((known, *_SUMS, *_NAMED, *_NAMELESS, *_CANNOT, *_AS_JSON, *_LANGUAGES, HINT))


def first_minute(words: Words) -> Said:
    """Draw what somebody types first."""
    style = words.rng.random()
    if style < 0.22:
        answer, asked = words.rng.choice(_by_heart())
        return _spelled(words.rng.choice(asked), answer)
    if style < 0.5:
        total = words.rng.randint(0, _MOST)
        a = words.rng.randint(0, total)
        return _spelled(
            words.rng.choice(_SUMS).format(a=a, b=total - a), f"{a} + {total - a} = {total}"
        )
    if style < 0.58:
        name = words.person()
        ids = (*encode("Nice to meet you,"), SPACE, *copy_of(encode(" " + name)), *encode("."))
        return Said(words.rng.choice(_NAMED).format(h=name), ids, name)
    if style < 0.68:
        return _spelled(_drawn(words, _AS_JSON), NO_JSON, is_known=False)
    forms = _NAMELESS if style < 0.71 else _CANNOT
    ids = (*encode(UNKNOWN), SPACE, *copy_of(encode(HINT)))
    return Said(_drawn(words, forms), ids, UNKNOWN, is_known=False)


def _spelled(said: str, answer: str, *, is_known: bool = True) -> Said:
    return Said(said, tuple(copy_of(encode(answer))), answer, is_known)


def _drawn(words: Words, forms: tuple[str, ...]) -> str:
    rng, text = words.rng, words.rng.choice(forms)
    draws: dict[str, Callable[[], str]] = {
        "n": words.noun,
        "p": words.place,
        "h": words.person,
        "d": lambda: str(rng.randint(0, 99)),
        "q": lambda: words.phrase(1, 6),
        "l": lambda: rng.choice(_LANGUAGES),
    }
    for mark, draw in draws.items():
        while f"{{{mark}}}" in text:
            text = text.replace(f"{{{mark}}}", draw(), 1)
    return text.lower() if rng.random() < 0.12 else text
