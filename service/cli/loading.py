"""Commands that are imported when they are typed, or when the list of commands is shown."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import click

Loader = Callable[[], click.Command]


def command(module: str, name: str) -> Loader:
    """What imports a command from its module; COMMANDS of parts/<name>/commands.py has these."""
    return lambda: getattr(import_module(module), name)
