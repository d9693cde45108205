"""Reading questions from a terminal: several lines, pasted text, history, completion."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from parts.terminal.chat.session import EFFORTS, NAMES, TOOLS

_PROMPT: Final = ">>> "
_FILES: Final = ("/load", "/save")
_SWITCH: Final = ("on", "off")
_CHOICES: Final = {
    "/effort": EFFORTS,
    "/think": _SWITCH,
    "/tools": tuple(f"{name} {state}" for name in TOOLS for state in _SWITCH),
}


class CommandCompleter(Completer):
    """Completes commands, what they take, and names of files."""

    def __init__(self) -> None:
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, separator, rest = text.partition(" ")
        if not separator:
            found = (each for each in NAMES if each.startswith(name))
            yield from (Completion(each, start_position=-len(name)) for each in found)
        elif name in _FILES:
            yield from self._files.get_completions(Document(rest, len(rest)), event)
        else:
            choices = (each for each in _CHOICES.get(name, ()) if each.startswith(rest))
            yield from (Completion(each, start_position=-len(rest)) for each in choices)


def history_at(path: Path) -> History:
    """The questions of earlier sessions, for the user's eyes only; none where the file cannot be
    kept."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        return FileHistory(str(path))
    return InMemoryHistory()


def prompt_session(history: Path) -> PromptSession[str]:
    """A prompt that Enter ends; a pasted line break, Alt-Enter and a closing backslash do not."""
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    return PromptSession(
        _PROMPT,
        history=history_at(history),
        completer=CommandCompleter(),
        complete_while_typing=False,
        key_bindings=keys,
        multiline=True,
        prompt_continuation="... ",
        enable_open_in_editor=True,
    )
