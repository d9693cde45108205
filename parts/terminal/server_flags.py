"""Which server a command asks, as flags: any that speaks OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def server_flags(function: Decorated) -> Decorated:
    """Give a command --url, --key and --model, which it gets as `url`, `key` and `model`."""
    for add in reversed(_FLAGS):
        function = add(function)
    return function


_FLAGS = (
    click.option(
        "--url",
        envvar="OPENAI_BASE_URL",
        default="http://127.0.0.1:8000",
        show_default=True,
        help="The server's URL. Default: OPENAI_BASE_URL.",
    ),
    click.option(
        "--key",
        envvar=["HARMONIUM_API_KEY", "OPENAI_API_KEY"],
        help="The API key. Safer: set HARMONIUM_API_KEY or OPENAI_API_KEY.",
    ),
    click.option("--model", help="The model. Default: the first that the server lists."),
)
