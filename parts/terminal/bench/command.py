"""The command `bench`: loads as users bring them, to any OpenAI-compatible server.

Exit codes: 0 measured, 1 a request failed, 2 bad arguments, 130 stopped by Ctrl-C (what was
measured until then is shown).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from service.cli.server_flags import key_flag, model_flag, url_flag


class Numbers(click.ParamType[tuple[int, ...]]):
    """An argument of numbers with commas between them, such as 1,8,64."""

    name = "N,N,..."

    def convert(self, value: object, param: object, ctx: object) -> tuple[int, ...]:
        """Read the numbers; anything else, and 0, is a usage error."""
        words = str(value).split(",")
        if not all(word.strip().isdecimal() and int(word) for word in words):
            self.fail(f"{value!r} must be numbers above 0, separated by commas, e.g. 1,8,64")
        return tuple(int(word) for word in words)


class LoadName(click.ParamType[Any]):
    """A load with its numbers, such as agents=24,context=4000."""

    name = "NAME[=N][,FIELD=N]"

    def convert(self, value: object, param: object, ctx: object) -> Any:
        """Read it; a load or field that there is not is a usage error."""
        from parts.terminal.bench.loads import planned  # imported for measurements only

        try:
            return planned(str(value))
        except ValueError as error:
            self.fail(str(error))


def _bounded(
    name: str, standard: int, text: str
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    least = click.IntRange(1)
    return click.option(name, type=least, default=standard, show_default=True, help=text)


@click.command
@url_flag(
    multiple=True,
    metavar="[NAME=]URL",
    help="The server's URL. Default: OPENAI_BASE_URL. Repeat it for servers in turn.",
)
@key_flag()
@model_flag()
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=LoadName(),
    help="streams, poisson, agents, bulk, rag, long, beside, guided, fields or rate, e.g. "
    "agents=24,context=4000.",
)
@click.option(
    "--streams",
    type=Numbers(),
    default="1,2,4,8,16",
    show_default=True,
    help="Concurrent streams, without --load.",
)
@_bounded("--rounds", 3, "Requests per stream, one after the other.")
@_bounded("--prompt-words", 128, "Words per prompt.")
@_bounded("--max-tokens", 128, "Tokens per answer.")
@click.option(
    "--fields",
    "is_fields",
    is_flag=True,
    help="Measure what sampling fields such as top_p, penalties and logprobs cost.",
)
@_bounded("--repeats", 1, "Runs of each load; shows medians.")
@click.option("--warm-up", "is_warmed", is_flag=True, help="Run each load once before it counts.")
@click.option(
    "--tokens",
    "is_in_tokens",
    is_flag=True,
    help="Prompts are gpt-oss's token ids for /v1/completions.",
)
@click.option("--ttft-ms", default=500.0, show_default=True, help="TTFT that `rate` must keep.")
@click.option("--token-ms", default=25.0, show_default=True, help="The same per token.")
@click.option("--json", "is_json", is_flag=True, help="Print the figures as one line of JSON.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Keep the JSON in a file, after each load."
)
@click.option(
    "--report",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show files of --output side by side; ask nothing.",
)
def bench(**given: Any) -> int:
    """Measure this or any OpenAI-compatible server under loads as users bring them."""
    from parts.terminal.bench.run import run  # imported for measurements only

    return run(**given)
