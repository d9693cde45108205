"""A question answered, or a conversation held, on a terminal or in a pipe."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from parts.terminal.chat.screen import Screen
from parts.terminal.chat.session import TOOLS, Session, command
from parts.terminal.client import Answer, ChatError, Client

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

ANSWERED, NO_ANSWER, STOPPED = 0, 1, 130
HISTORY = Path("~/.cache/harmonium/chat_history")


def run(url: str, key: str | None, session: Session, question: str | None, *, is_json: bool) -> int:
    """Answer `question`, or hold a conversation where there is none; return the exit code."""
    try:
        with Client(url, key) as client:
            session.model = session.model or client.first_model()
            if question is not None:
                return _answer_one(client, session, question, is_json)
            return _converse(client, session)
    except ChatError as error:
        click.echo(f"harmonium chat: {error}", err=True)
        return NO_ANSWER


def _answer_one(client: Client, session: Session, question: str, is_json: bool) -> int:
    """Answer on standard output: the text alone in a pipe, set and with figures on a terminal."""
    session.ask(question)
    answer = Answer()
    if sys.stdout.isatty() and not is_json:
        return _stream(client, session, answer, Console())
    try:
        for delta in client.ask(session.body(), answer):
            if not is_json and delta.kind == "content":
                click.echo(delta.text, nl=False)
    except KeyboardInterrupt:
        return STOPPED
    click.echo(json.dumps(asdict(answer), ensure_ascii=False) if is_json else "")
    return ANSWERED


def _converse(client: Client, session: Session) -> int:
    """Ask and answer until Ctrl-D; Ctrl-C stops an answer, not the program."""
    from parts.terminal.chat.prompt import prompt_session  # a single question needs none

    session.connected = tuple(name for name in client.connected_tools() if name in TOOLS)
    console, prompt = Console(), prompt_session(HISTORY.expanduser())
    console.print(
        f"[bold]{session.model}[/] at {client.url}   /help lists the commands", style="dim"
    )
    while (line := _read(prompt, console)) is not None:
        if line in ("/quit", "/exit"):
            break
        if line == "/retry" and session.ask_again():
            _try_stream(client, session, console)
        elif line.startswith("/"):
            console.print(command(session, line), style="dim", markup=False, highlight=False)
        elif line:
            session.ask(line)
            _try_stream(client, session, console)
    return ANSWERED


def _read(prompt: PromptSession[str], console: Console) -> str | None:
    """Read a question or a command; None at the end."""
    try:
        return prompt.prompt().strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        console.print("(Ctrl-D ends)", style="dim")
        return ""


def _try_stream(client: Client, session: Session, console: Console) -> None:
    """Answer; an error is shown, and its question removed, so that the chat can continue."""
    answer = Answer()
    try:
        _stream(client, session, answer, console)
    except ChatError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
    session.keep(answer)


def _stream(client: Client, session: Session, answer: Answer, console: Console) -> int:
    screen, note, code = Screen(console, session.shows_thoughts), "", ANSWERED
    try:
        with closing(client.ask(session.body(), answer)) as deltas:  # type: ignore[type-var]
            for delta in deltas:
                screen.show(delta)
    except KeyboardInterrupt:
        note, code = "stopped", STOPPED
    finally:
        screen.finish(answer, note)
    return code
