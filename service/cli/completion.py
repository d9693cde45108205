"""`harmonium completion`: what a shell needs to complete commands, flags and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script; in bash: source <(harmonium completion bash)"""
    root = ctx.find_root()
    name = str(root.info_name)
    found = get_completion_class(shell)
    assert found is not None, shell
    click.echo(found(root.command, {}, name, f"_{name.upper()}_COMPLETE").source())
