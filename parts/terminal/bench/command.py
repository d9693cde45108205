"""The command `bench`: a sweep over numbers of streams.

Exit codes: 0 measured, 1 a request failed, 2 bad arguments, 130 stopped by Ctrl-C (what was
measured until then is shown).
"""

from __future__ import annotations

import click

from parts.terminal.server_flags import server_flags


class Numbers(click.ParamType[tuple[int, ...]]):
    """An argument of numbers with commas between them, such as 1,8,64."""

    name = "N,N,..."

    def convert(self, value: object, param: object, ctx: object) -> tuple[int, ...]:
        """Read the numbers; anything else, and 0, is a usage error."""
        words = str(value).split(",")
        if not all(word.strip().isdecimal() and int(word) for word in words):
            self.fail(f"{value!r} must be numbers above 0, separated by commas, e.g. 1,8,64")
        return tuple(int(word) for word in words)


@click.command
@server_flags
@click.option(
    "--streams",
    type=Numbers(),
    default="1,2,4,8,16",
    show_default=True,
    help="Concurrent streams, comma-separated.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Requests per stream, one after the other.",
)
@click.option(
    "--prompt-words",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Words per prompt.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(2),
    default=128,
    show_default=True,
    help="Tokens per answer.",
)
@click.option(
    "--fields",
    "is_fields",
    is_flag=True,
    help="Measure what sampling fields such as top_p, penalties and logprobs cost.",
)
@click.option("--json", "is_json", is_flag=True, help="Print the figures as one line of JSON.")
def bench(
    url: str,
    key: str | None,
    model: str | None,
    streams: tuple[int, ...],
    rounds: int,
    prompt_words: int,
    max_tokens: int,
    is_fields: bool,
    is_json: bool,
) -> int:
    """Measure the streaming speed of this or any OpenAI-compatible server."""
    from parts.terminal.bench.run import run  # imported for measurements only
    from parts.terminal.bench.sweep import BenchLoad

    load = BenchLoad(model or "", prompt_words, max_tokens, rounds)
    return run(url, key, load, streams, is_fields=is_fields, is_json=is_json)
