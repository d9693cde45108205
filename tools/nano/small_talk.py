"""Tasks without tools: questions nano cannot answer, and text to be copied."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.conversation import Message
from tools.nano.spelling import copied, copy_of, is_copyable
from tools.nano.tokens import SPACE, encode, text_of
from tools.nano.vocabulary import copyable_ids
from tools.nano.words import Words

_ANSWERABLE = re.compile(r"weather|time|capital|recipe|mean|function|Summar|far|\{d\}|\+")


@cache
def _questions(is_held_out: bool) -> tuple[tuple[str, str], ...]:
    """Return the topic of each form's wish, empty for none, and the form."""
    lines = Path(__file__).with_name("unknown.txt").read_text().splitlines()
    kept = [line for line in lines if line and line[0] != "#" and (line[0] == "~") == is_held_out]
    parts = (line.removeprefix("~ ").split("| ", 1) for line in kept)
    return tuple((topic.strip(), form) for topic, form in parts)


def unknown_question(words: Words, with_tools: bool = False) -> tuple[str, str]:
    """Ask something that nano cannot know: the topic of its wish, if it has one, and the text."""
    forms = words.choose([_questions(False)], [_questions(True)])
    if with_tools:  # a tool on offer could well tell these
        forms = tuple(pair for pair in forms if not _ANSWERABLE.search(pair[1]))
    topic, form = words.rng.choice(forms)
    draws = {"n": words.noun, "p": words.place, "h": words.person, "d": words.number}
    text = re.sub(r"\{(\w)\}", lambda match: str(draws[match[1]]()), form)
    return topic, text[0].upper() + text[1:] if words.rng.random() < 0.9 else text


@dataclass(frozen=True, slots=True)
class Copy:
    """A request whose answer repeats something of the prompt."""

    said: str
    act: str
    text: str = ""
    ids: tuple[int, ...] = ()
    before: str = ""
    after: str = ""
    history: tuple[Message, ...] = ()
    is_date: bool = False


def copy_task(words: Words) -> Copy:
    """Ask to repeat a text, to remember a name, or to tell the date."""
    style = words.rng.random()
    if style < 0.12:
        asked = words.say("dates")
        return Copy(asked, "asks for the date", after=".", is_date=True)
    return _name(words) if style < 0.3 else _repeat(words)


def _repeat(words: Words) -> Copy:
    text = _anything(words)
    said = words.say("repeats").format(text)
    ids = tuple(copied(text, said))
    return Copy(said, "asks me to repeat something", text, ids)


def _anything(words: Words) -> str:
    if words.split == "heldout" or words.rng.random() < 0.3:
        texts = [words.place(), words.person(), words.code(), words.phrase(2, 6)]
        return words.rng.choice(texts)
    while True:
        ids = words.rng.choices(copyable_ids(), k=words.rng.randint(2, 12))
        text = " ".join("".join(map(text_of, ids)).split()).strip(' "')
        if text and is_copyable(text):
            return text


def _name(words: Words) -> Copy:
    name = words.person()
    ids = (SPACE, *copy_of(encode(" " + name)))
    form = words.choose(["My name is {}.", "I am {}.", "Hi, I'm {}."], ["Hello, my name is {}."])
    told = form.format(name)
    greeting = f"Nice to meet you, {name}."
    if words.rng.random() < 0.5:
        return Copy(told, "tells me a name", name, ids, "Nice to meet you,", ".")
    history = (Message("user", told), Message("assistant", greeting))
    asked = words.choose(["What is my name?", "Who am I?", "What's my name?"], ["Tell me my name."])
    return Copy(asked, "asks for a name", name, ids, "Your name is", ".", history)
