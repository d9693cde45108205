"""Ask a server on nano what people type first: `python -m tools.nano.first_messages URL`.

Prints each answer. Counts refusals, flat and with a hint what to ask instead, answers that repeat
the message, and answers with words that nano neither knows by heart nor read in the message.
Whether an answer is right is for a reader to say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import httpx2

from tools.nano.about import NO_TOOL, UNKNOWN, intents
from tools.nano.first_minute import HINT, set_words

_LISTED: Final = "first_messages.txt"
_OTHERS: Final = ("own_messages.txt", "typed_messages.txt")  # as well kept out of training
_MOST_TOKENS: Final = 200
_MOST_CHARACTERS: Final = 300  # no set answer is longer


def messages(name: str = _LISTED) -> list[str]:
    """Return the messages of a file."""
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return [line for line in lines if line and line[0] != "#"]


@cache
def _kept_out() -> frozenset[str]:
    return frozenset(_bare(said) for name in (_LISTED, *_OTHERS) for said in messages(name))


def is_kept_out(said: str) -> bool:
    """Say whether a text is one of the messages; white space may differ, and of three words or more
    the case."""
    return _bare(said) in _kept_out()


def _bare(said: str) -> str:
    said = " ".join(said.split())
    return said.strip(" .?!").lower() if said.count(" ") > 1 else said


def is_echo(message: str, answer: str) -> bool:
    """Say whether an answer of two words or more only repeats the message."""
    bare = answer.strip(" .").lower()
    return " " in bare and bare in message.lower()


def is_salad(message: str, answer: str) -> bool:
    """Say whether an answer has a word of neither the set answers nor the message."""
    return not _words(answer) <= _known() | _words(message) or len(answer) > _MOST_CHARACTERS


@cache
def _known() -> frozenset[str]:
    told = " ".join(intent.answer for intent in intents())
    return _words(f"{told} {NO_TOOL} Today is {set_words()}")


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W\d_]+", text.lower()))


def answer_of(url: str, message: str) -> str:
    """Ask at the server's defaults."""
    body = {"model": "nano", "messages": [{"role": "user", "content": message}]}
    asked = httpx2.post(
        f"{url}/v1/chat/completions", json=body | {"max_tokens": _MOST_TOKENS}, timeout=120
    )
    return str(asked.raise_for_status().json()["choices"][0]["message"]["content"])


def main(url: str) -> None:
    """Ask, print and count."""
    answers = {message: answer_of(url, message) for message in messages()}
    for message, answer in answers.items():
        print(f"{message!r:58} {answer[:100]!r}")
    print(counted(answers))


def counted(answers: Mapping[str, str]) -> str:
    """Count what is wrong with answers by their messages."""
    num_flat = sum(answer == UNKNOWN for answer in answers.values())
    num_hinted = sum(answer == f"{UNKNOWN} {HINT}" for answer in answers.values())
    num_echoes = sum(is_echo(message, answer) for message, answer in answers.items())
    num_salads = sum(is_salad(message, answer) for message, answer in answers.items())
    return (
        f"{len(answers)} messages: {num_flat} flat refusals, {num_hinted} with a hint, "
        f"{num_echoes} echoes, {num_salads} salads"
    )


if __name__ == "__main__":
    main(sys.argv[1])
