"""Which server a command asks, as flags, and why it got no answer: any with OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import httpx2

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def url_flag(
    help: str = "The server's URL. Default: OPENAI_BASE_URL.", **more: Any
) -> Callable[[Decorated], Decorated]:
    """Give a command --url, with what it adds to the option."""
    url = "http://127.0.0.1:8000"
    return click.option(
        "--url", envvar="OPENAI_BASE_URL", default=url, show_default=True, help=help, **more
    )


def key_flag() -> Callable[[Decorated], Decorated]:
    return click.option(
        "--key",
        envvar=["HARMONIUM_API_KEY", "OPENAI_API_KEY"],
        help="The API key. Safer: set HARMONIUM_API_KEY or OPENAI_API_KEY.",
    )


def model_flag() -> Callable[[Decorated], Decorated]:
    return click.option("--model", help="The model. Default: the first that the server lists.")


def server_flags(function: Decorated) -> Decorated:
    """Give a command --url, --key and --model, which it gets as `url`, `key` and `model`."""
    return url_flag()(key_flag()(model_flag()(function)))


def refusal(answer: httpx2.Response) -> str:
    """What the server says of its error, and what to do."""
    try:
        error = answer.json()["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError):
        message = f"HTTP {answer.status_code}: {answer.text[:200]}"
    remedy = " Pass a key with --key or set OPENAI_API_KEY." if answer.status_code == 401 else ""
    return f"{message}{remedy}"


def unreachable(url: str, error: httpx2.HTTPError) -> str:
    if type(error).__name__ == "ConnectError":
        return (
            f"No server responds at {url}. Start one with `harmonium serve` in another "
            "terminal, or pass --url."
        )
    return f"{url}: {error or type(error).__name__}"
