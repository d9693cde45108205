"""The command `chat`: one question with --quick, from a pipe or both, or a conversation.

Exit codes: 0 answered, 1 no answer, 2 bad arguments, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import stat
import sys

import click

from parts.terminal.chat.session import EFFORTS, Session
from service.cli.server_flags import server_flags


def _piped(question: str | None) -> str:
    """What was piped in: the question, or what a question on the command line is about."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    has_text = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    if has_text or (question is None and not sys.stdin.isatty()):
        return sys.stdin.read().strip()
    return ""


@click.command
@server_flags
@click.argument("words", nargs=-1, metavar="[QUESTION]")
@click.option("--quick", metavar="QUESTION", help="Answer one question and exit.")
@click.option(
    "--json", "is_json", is_flag=True, help="With a single question: print the answer as JSON."
)
@click.option("--system", metavar="TEXT", help="System instructions.")
@click.option("--effort", type=click.Choice(EFFORTS), help="Reasoning effort.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="Sampling temperature.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens per answer.")
def chat(
    url: str,
    key: str | None,
    model: str | None,
    words: tuple[str, ...],
    quick: str | None,
    is_json: bool,
    system: str | None,
    effort: str | None,
    temperature: float | None,
    max_tokens: int | None,
) -> int:
    """Chat with this or any OpenAI-compatible server in the terminal."""
    if words and quick is not None:
        raise click.UsageError("The question is given twice: as QUESTION and with --quick.")
    question = " ".join(words) if words else quick
    if piped := _piped(question):
        question = f"{piped}\n\n{question}" if question else piped
    elif question is None and not sys.stdin.isatty():
        question = ""
    if question == "" or (is_json and question is None):
        raise click.UsageError("No question: pass --quick, or pipe one in.")
    from parts.terminal.chat.conversation import run  # imported for conversations only

    session = Session(model or "", effort, system, temperature, max_tokens)
    return run(url, key, session, question, is_json=is_json)
