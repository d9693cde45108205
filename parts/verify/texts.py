"""The fixed texts: three conversations and the answers that are scored."""

from __future__ import annotations

from typing import Final

from service.chat_format import ChatFormat
from service.conversation import Conversation, Message

_CONVERSATIONS: Final = (
    (
        "Why does the moon show phases?",
        "The moon has no light of its own. The sun always lights one half of it. While the moon "
        "travels around the earth in about a month, we see a changing part of the lit half: "
        "nothing of it at new moon, and all of it at full moon.",
    ),
    (
        "Write a Python function that returns the greatest common divisor of two numbers.",
        "def gcd(a: int, b: int) -> int:\n    while b:\n        a, b = b, a % b\n"
        "    return abs(a)\n",
    ),
    (
        "Nenne drei Flüsse in Europa als JSON mit ihrer Länge in Kilometern.",
        '{"flüsse": [{"name": "Donau", "km": 2850}, {"name": "Rhein", "km": 1233}, '
        '{"name": "Loire", "km": 1006}]}',
    ),
)


def prompts(format: ChatFormat) -> tuple[tuple[int, ...], ...]:
    """The conversations as the model is asked them, up to its turn."""
    return tuple(_ids(format, Message("user", asked)) for asked, _ in _CONVERSATIONS)


def texts(format: ChatFormat) -> tuple[tuple[int, ...], ...]:
    """The answers that are scored after the prompts, without what ends them."""
    return tuple(_text(format, asked, answer) for asked, answer in _CONVERSATIONS)


def _text(format: ChatFormat, asked: str, answer: str) -> tuple[int, ...]:
    question = Message("user", asked)
    whole = _ids(format, question, Message("assistant", answer), opens_answer=False)
    ids = whole[len(_ids(format, question)) :]
    while not format.is_ordinary(ids[-1]):
        ids = ids[:-1]
    return ids


def _ids(format: ChatFormat, *messages: Message, opens_answer: bool = True) -> tuple[int, ...]:
    conversation = Conversation(messages, current_date="2025-08-05", opens_answer=opens_answer)
    return tuple(format.prompt_of(conversation))
