"""A conversation: what was said so far, how to answer, and the commands that change both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parts.terminal.client import Answer

EFFORTS = ("low", "medium", "high")
TOOLS = {"browser": "web_search", "python": "code_interpreter"}  # the API's types of them
HELP = """\
/effort low|medium|high   reasoning effort
/system TEXT              set instructions; /system alone removes them
/temperature NUMBER       sampling temperature; 0 is greedy
/retry                    regenerate the last answer
/clear                    start a new conversation
/save FILE                save the conversation as JSON
/load FILE                continue a saved conversation, or attach a text file
/think on|off             show or hide the reasoning
/tools [NAME on|off]      list the server's tools, or offer one to the model
/quit                     quit (also Ctrl-D); Ctrl-C stops an answer
Alt-Enter, or \\ at the end of a line, begins another line; pasted lines stay together.
Ctrl-X Ctrl-E opens the question in $VISUAL or $EDITOR.
Tab completes; the arrow keys find earlier questions."""


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
    shows_thoughts: bool = True
    attached: list[str] = field(default_factory=list)  # files that go with the next question
    connected: tuple[str, ...] = ()  # the server's own tools
    offered: list[str] = field(default_factory=list)  # those of them that the model may call

    def body(self) -> dict[str, Any]:
        told = [{"role": "system", "content": self.system}] if self.system else []
        settings = {
            "reasoning_effort": self.effort,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        given: dict[str, Any] = {n: value for n, value in settings.items() if value is not None}
        if self.offered:
            given["tools"] = [{"type": TOOLS[name]} for name in self.offered]
        return {"model": self.model, "messages": [*told, *self.turns], **given}

    def ask(self, question: str) -> None:
        question = "\n\n".join([*self.attached, question])
        self.attached.clear()
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
    return deed(session, rest.strip()) if deed else f"/{name} is not a command.\n{HELP}"


def _effort(session: Session, text: str) -> str:
    if text not in EFFORTS:
        return f"/effort takes {', '.join(EFFORTS)}; it is {session.effort or 'the default'}."
    session.effort = text
    return f"Reasoning effort: {text}."


def _system(session: Session, text: str) -> str:
    session.system = text or None
    return "Instructions are set." if text else "Instructions removed."


def _temperature(session: Session, text: str) -> str:
    try:
        session.temperature = float(text)
    except ValueError:
        return f"/temperature takes a number, not {text!r}."
    return f"Temperature: {session.temperature:g}."


def _clear(session: Session, _: str) -> str:
    session.turns.clear()
    return "New conversation."


def _save(session: Session, text: str) -> str:
    if not text:
        return "/save needs a file name."
    try:
        Path(text).expanduser().write_text(json.dumps(session.body(), indent=2, ensure_ascii=False))
    except OSError as error:
        return f"{text} cannot be written: {error.strerror}."
    return f"Written to {text}."


def _load(session: Session, text: str) -> str:
    """Take a conversation that /save wrote, or any other text for the next question."""
    if not text:
        return "/load needs a file name."
    try:
        content = Path(text).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        return f"{text} cannot be read: {error.strerror}."
    except UnicodeDecodeError:
        return f"{text} is not a text file."
    if (turns := _saved(content)) is not None:
        session.system = next((t["content"] for t in turns if t["role"] == "system"), None)
        session.turns = [turn for turn in turns if turn["role"] != "system"]
        return f"Loaded {len(session.turns)} messages."
    session.attached.append(f"{Path(text).name}:\n{content}")
    return f"The next question includes {len(content):,} characters of {text}."


def _saved(content: str) -> list[dict[str, Any]] | None:
    """The messages that /save wrote; None for any other text."""
    try:
        turns = json.loads(content)["messages"]
        known = all(turn["role"] and "content" in turn for turn in turns)
    except (ValueError, LookupError, TypeError):
        return None
    return turns if known and isinstance(turns, list) else None


def _think(session: Session, text: str) -> str:
    if text not in ("on", "off"):
        return f"/think takes on or off; it is {'on' if session.shows_thoughts else 'off'}."
    session.shows_thoughts = text == "on"
    return f"Reasoning is {'shown' if session.shows_thoughts else 'hidden'}."


def _tools(session: Session, text: str) -> str:
    if not session.connected:
        return "This server has no tools of its own."
    name, _, state = text.partition(" ")
    if text and (name not in session.connected or state not in ("on", "off")):
        return f"/tools takes {' or '.join(session.connected)}, then on or off."
    if text:
        others = [each for each in session.offered if each != name]
        session.offered = [*others, name] if state == "on" else others
    states = [f"{e} {'on' if e in session.offered else 'off'}" for e in session.connected]
    return f"Tools of the server: {', '.join(states)}."


_COMMANDS: dict[str, Callable[[Session, str], str]] = {
    "effort": _effort,
    "system": _system,
    "temperature": _temperature,
    "clear": _clear,
    "save": _save,
    "load": _load,
    "think": _think,
    "tools": _tools,
    "help": lambda *_: HELP,
}
NAMES = tuple(f"/{name}" for name in (*_COMMANDS, "retry", "quit"))
