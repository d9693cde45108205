"""Questions about this service, with their answers and the reasoning before them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from service.conversation import ReasoningEffort
from tools.nano.words import Words


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing users ask, in the words of both sides of the split."""

    name: str
    act: str  # what the user does, as in 'greets me'
    answer: str
    topics: tuple[str, ...]
    train: tuple[str, ...]
    heldout: tuple[str, ...]

    def ask(self, words: Words) -> str:
        """Draw a question of one side of the split; training also asks about topics."""
        if words.split == "train" and self.topics and words.rng.random() < 0.3:
            question = words.say("topic forms").format(words.rng.choice(self.topics))
            if question not in self.heldout:
                return question[0].upper() + question[1:]
        return words.choose(self.train, self.heldout)


@cache
def intents() -> tuple[Intent, ...]:
    """Read the intents."""
    text = Path(__file__).with_name("about.txt").read_text()
    return tuple(_parse(block) for block in re.split(r"^= ", text, flags=re.MULTILINE)[1:])


def _parse(block: str) -> Intent:
    head, *lines = block.splitlines()
    name, act, answer = (part.strip() for part in head.split("|"))
    marked = {mark: [line[2:] for line in lines if line.startswith(f"{mark} ")] for mark in "~*"}
    train = tuple(line for line in lines if line and line[:2] not in ("~ ", "* "))
    topics = tuple("|".join(marked["*"]).split("|")) if marked["*"] else ()
    return Intent(name, act, answer, topics, train, tuple(marked["~"]))


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
