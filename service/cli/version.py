"""`harmonium version`: the same as `harmonium --version`."""

from __future__ import annotations

import click

from engines.release import NAME, release


@click.command
def version() -> None:
    """Print the version."""
    click.echo(f"{NAME} {release()}")
