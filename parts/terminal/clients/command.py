"""The command `clients`: the lines that point a coding agent at the server that runs.

Exit codes: 0 printed, 1 no server answers, 2 bad arguments.
"""

from __future__ import annotations

import re
from typing import Final

import click

from parts.terminal.clients.configurations import CONFIGURATIONS, KEY_VARIABLE, Target
from service.cli.server_flags import server_flags

PRINTED, FAILED = 0, 1
# What is printed is pasted into a shell, and a server could give its model any name.
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/\[\]-]*")


@click.command
@server_flags
@click.argument("client", required=False, type=click.Choice(sorted(CONFIGURATIONS)))
def clients(url: str, key: str | None, model: str | None, client: str | None) -> int:
    """Print the configuration of a coding agent for the running server."""
    if client is None:
        click.echo("harmonium clients NAME prints the lines to paste for one of these:\n")
        click.echo("\n".join(f"  {name}" for name in sorted(CONFIGURATIONS)))
        return PRINTED
    from parts.terminal.client import ChatError, Client  # imported for requests only

    try:
        with Client(url, key) as server:
            name, context = server.served(model)
            target = Target(server.url, name, context, has_key=key is not None)
    except ChatError as error:
        click.echo(f"harmonium clients: {error}", err=True)
        return FAILED
    for text in (target.model, target.url):
        if not _PLAIN.fullmatch(text):
            click.echo(f"harmonium clients: {text!r} cannot be written in a shell", err=True)
            return FAILED
    click.echo(f"{target.model} at {target.url}, a context of {target.context:,} tokens.", err=True)
    if target.has_key:
        click.echo(f"The key is read from {KEY_VARIABLE}: export {KEY_VARIABLE}=...", err=True)
    click.echo(CONFIGURATIONS[client](target))
    return PRINTED
