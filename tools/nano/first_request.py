"""The first request of a conversation with tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.conversation import Tool
from tools.nano.values import Value
from tools.nano.words import Words


@dataclass(frozen=True, slots=True)
class First:
    """What a client sends first, and the call that answers it."""

    said: str
    tools: tuple[Tool, ...]
    call: str
    values: dict[str, Value]
    system: str = ""


def shuffled(words: Words, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Put tools in a random order, those of one name but once."""
    named = list({tool.name: tool for tool in reversed(tools)}.values())  # the first of a name
    return tuple(words.rng.sample(named, len(named)))
