"""Questions about this service, with their answers and the reasoning before them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.harmony.types import ReasoningEffort


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing users ask, in the words of both sides of the split."""

    name: str
    act: str  # what the user does, as in 'greets me'
    answer: str
    train: tuple[str, ...]
    heldout: tuple[str, ...]


@cache
def intents() -> tuple[Intent, ...]:
    """Read the intents."""
    found: list[tuple[list[str], list[str], list[str]]] = []
    for line in Path(__file__).with_name("about.txt").read_text().splitlines():
        if line.startswith("= "):
            found.append(([part.strip() for part in line[2:].split("|")], [], []))
        elif line.startswith("~ "):
            found[-1][2].append(line[2:])
        elif line and not line.startswith("#"):
            found[-1][1].append(line)
    return tuple(
        Intent(head[0], head[1], head[2], tuple(train), tuple(heldout))
        for head, train, heldout in found
    )


UNKNOWN = "I do not know. I am a small demonstration model and know only about this service."
NO_TOOL = "None of the offered tools can do that, and I do not know the answer myself."


def think(act: str, plan: str, effort: ReasoningEffort) -> str:
    """Reason about what the user does, at the length the effort asks for."""
    if effort == "low":
        return f"The user {act}."
    if effort == "medium":
        return f"The user {act}. {plan}"
    return (
        f"The user {act}. I read the message again to be sure of it. {plan} "
        "The answer should be short and plain, and I add nothing that I do not know."
    )
