"""The command `bench`: a sweep over numbers of streams.

Exit codes: 0 measured, 1 a request failed, 2 bad arguments, 130 stopped by Ctrl-C (what was
measured until then is shown).
"""

from __future__ import annotations

import click

from service.cli.server_flags import server_flags


class Numbers(click.ParamType[tuple[int, ...]]):
    """An argument of numbers with commas between them, such as 1,8,64."""

    name = "N,N,..."

    def convert(self, value: object, param: object, ctx: object) -> tuple[int, ...]:
        """Read the numbers; anything else, and 0, is a usage error."""
        words = str(value).split(",")
        if not all(word.strip().isdecimal() and int(word) for word in words):
            self.fail(f"{value!r} must be numbers above 0 with commas between them, as in 1,8,64")
        return tuple(int(word) for word in words)


@click.command
@server_flags
@click.option(
    "--streams", type=Numbers(), default="1,2,4,8,16", show_default=True, help="How many at once."
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Requests of each stream, one after the other.",
)
@click.option(
    "--prompt-words", type=click.IntRange(1), default=128, show_default=True, help="Of each prompt."
)
@click.option(
    "--max-tokens", type=click.IntRange(2), default=128, show_default=True, help="Of each answer."
)
@click.option("--json", "is_json", is_flag=True, help="The figures as one line of JSON.")
def bench(
    url: str,
    key: str | None,
    model: str | None,
    streams: tuple[int, ...],
    rounds: int,
    prompt_words: int,
    max_tokens: int,
    is_json: bool,
) -> int:
    """Measure how quickly this or any OpenAI-compatible server streams."""
    from service.cli.bench.run import run  # only who measures waits for rich and httpx
    from service.cli.bench.sweep import BenchLoad

    load = BenchLoad(model or "", prompt_words, max_tokens, rounds)
    return run(url, key, load, streams, is_json=is_json)
