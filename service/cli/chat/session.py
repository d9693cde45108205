"""A conversation: what was said so far, how to answer, and the commands that change both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.cli.chat.client import Answer

EFFORTS = ("low", "medium", "high")
HELP = """\
/effort low|medium|high   how much the model thinks
/system TEXT              instructions from here on; /system alone takes them back
/temperature NUMBER       0 for the likeliest answer
/retry                    answer the last question again
/clear                    forget the conversation
/save FILE                write it down as JSON
/quit                     end (Ctrl-D too); Ctrl-C stops an answer
A line that ends with \\ goes on in the next."""


@dataclass(slots=True)
class Session:
    """The turns of a conversation and the settings of its requests."""

    model: str
    effort: str | None = None
    system: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    last_question: str | None = None

    def body(self) -> dict[str, Any]:
        """Make the request for the next answer."""
        told = [{"role": "system", "content": self.system}] if self.system else []
        settings = {
            "reasoning_effort": self.effort,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        return {"model": self.model, "messages": [*told, *self.turns], **given}

    def ask(self, question: str) -> None:
        """Add a question to the conversation."""
        self.last_question = question
        self.turns.append({"role": "user", "content": question})

    def ask_again(self) -> bool:
        """Put the last question once more, in place of its answer; return False for none."""
        if self.last_question is None:
            return False
        questions = [at for at, turn in enumerate(self.turns) if turn["role"] == "user"]
        if questions and self.turns[questions[-1]]["content"] == self.last_question:
            del self.turns[questions[-1] :]
        self.ask(self.last_question)
        return True

    def keep(self, answer: Answer) -> None:
        """Add the answer to the conversation; one without a word takes its question back."""
        if answer.content or answer.tool_calls:
            self.turns.append(answer.as_message())
        else:
            self.turns.pop()


def command(session: Session, line: str) -> str:
    """Carry out a line such as `/effort high`; return what to tell."""
    name, _, rest = line[1:].partition(" ")
    deed = _COMMANDS.get(name)
    return deed(session, rest.strip()) if deed else f"/{name} is no command.\n{HELP}"


def _effort(session: Session, text: str) -> str:
    if text not in EFFORTS:
        return f"/effort takes {', '.join(EFFORTS)}; it is {session.effort or 'the default'}."
    session.effort = text
    return f"Effort is {text} now."


def _system(session: Session, text: str) -> str:
    session.system = text or None
    return "Instructions are set." if text else "Instructions are taken back."


def _temperature(session: Session, text: str) -> str:
    try:
        session.temperature = float(text)
    except ValueError:
        return f"/temperature takes a number, not {text!r}."
    return f"Temperature is {session.temperature:g} now."


def _clear(session: Session, _: str) -> str:
    session.turns.clear()
    return "The conversation is forgotten."


def _save(session: Session, text: str) -> str:
    if not text:
        return "/save takes a file's name."
    try:
        Path(text).expanduser().write_text(json.dumps(session.body(), indent=2, ensure_ascii=False))
    except OSError as error:
        return f"{text} cannot be written: {error.strerror}."
    return f"Written to {text}."


_COMMANDS: dict[str, Callable[[Session, str], str]] = {
    "effort": _effort,
    "system": _system,
    "temperature": _temperature,
    "clear": _clear,
    "save": _save,
    "help": lambda *_: HELP,
}
