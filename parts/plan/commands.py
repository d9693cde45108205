"""The command, loaded when it is typed."""

from __future__ import annotations

from typing import Final

import click


def _plan() -> click.Command:
    from parts.plan.command import plan

    return plan


COMMANDS: Final = {"plan": _plan}
