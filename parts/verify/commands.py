"""The command, loaded when it is typed."""

from __future__ import annotations

from typing import Final

import click


def _verify() -> click.Command:
    from parts.verify.command import verify

    return verify


COMMANDS: Final = {"verify": _verify}
