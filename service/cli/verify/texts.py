"""The fixed texts: three conversations and the answers that are scored."""

from __future__ import annotations

from typing import Final

from service.chat_format import CHAT_FORMAT
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
_BEFORE_TEXT: Final = "<|channel|>final<|message|>"


def prompts() -> tuple[tuple[int, ...], ...]:
    """The conversations as the model is asked them, up to its turn."""
    return tuple(
        tuple(
            CHAT_FORMAT.render(Conversation((Message("user", asked),), current_date="2025-08-05"))
        )
        for asked, _ in _CONVERSATIONS
    )


def texts() -> tuple[tuple[int, ...], ...]:
    """The answers that are scored after the prompts."""
    return tuple(
        (*CHAT_FORMAT.encode_marked(_BEFORE_TEXT), *CHAT_FORMAT.encode_text(answer))
        for _, answer in _CONVERSATIONS
    )
