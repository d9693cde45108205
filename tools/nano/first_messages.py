"""Ask a server on nano what people type first: `python -m tools.nano.first_messages URL`.

Prints each answer, and counts flat refusals and answers that repeat the message. Whether another
answer makes sense is for a reader to say.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Final

import httpx

from tools.nano.about import UNKNOWN

_LISTED: Final = Path(__file__).with_name("first_messages.txt")
_MOST_TOKENS: Final = 200


def messages() -> list[str]:
    """Return the messages."""
    return [line for line in _LISTED.read_text().splitlines() if line and line[0] != "#"]


@cache
def _kept_out() -> frozenset[str]:
    return frozenset(map(_bare, messages()))


def is_kept_out(said: str) -> bool:
    """Say whether a text is one of the messages; of three words or more their case may differ."""
    return _bare(said) in _kept_out()


def _bare(said: str) -> str:
    return said.strip(" .?!").lower() if said.count(" ") > 1 else said


def is_echo(message: str, answer: str) -> bool:
    """Say whether an answer of two words or more only repeats the message."""
    bare = answer.strip(" .").lower()
    return " " in bare and bare in message.lower()


def answer_of(url: str, message: str) -> str:
    """Ask at the server's defaults."""
    body = {"model": "nano", "messages": [{"role": "user", "content": message}]}
    asked = httpx.post(
        f"{url}/v1/chat/completions", json=body | {"max_tokens": _MOST_TOKENS}, timeout=120
    )
    return str(asked.raise_for_status().json()["choices"][0]["message"]["content"])


def main(url: str) -> None:
    """Ask, print and count."""
    answers = {message: answer_of(url, message) for message in messages()}
    for message, answer in answers.items():
        print(f"{message!r:58} {answer[:100]!r}")
    num_refused = sum(answer == UNKNOWN for answer in answers.values())
    num_echoes = sum(is_echo(message, answer) for message, answer in answers.items())
    print(f"{len(answers)} messages: {num_refused} flat refusals, {num_echoes} echoes")


if __name__ == "__main__":
    main(sys.argv[1])
