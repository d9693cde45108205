"""The command `chat`: one question with --quick or from a pipe, or a conversation.

Exit codes: 0 answered, 1 no answer, 2 bad arguments, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys

import click

from service.cli.chat.session import EFFORTS, Session
from service.cli.server_flags import server_flags


@click.command
@server_flags
@click.argument("words", nargs=-1, metavar="[QUESTION]")
@click.option("--quick", metavar="QUESTION", help="Answer this one question and end.")
@click.option("--json", "is_json", is_flag=True, help="With one question: the answer as JSON.")
@click.option("--system", metavar="TEXT", help="Instructions.")
@click.option("--effort", type=click.Choice(EFFORTS), help="How much the model thinks.")
@click.option("--temperature", type=click.FloatRange(0, 2))
@click.option("--max-tokens", type=click.IntRange(1))
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
    """Talk to this or any OpenAI-compatible server, in the terminal."""
    if words and quick is not None:
        raise click.UsageError("The question is given twice: as QUESTION and by --quick.")
    question = " ".join(words) if words else quick
    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read().strip()
    if question == "" or (is_json and question is None):
        raise click.UsageError("There is no question: give --quick or pipe one in.")
    from service.cli.chat.conversation import run  # only who talks waits for rich and httpx

    session = Session(model or "", effort, system, temperature, max_tokens)
    return run(url, key, session, question, is_json=is_json)
