"""The command, loaded when it is typed."""

from __future__ import annotations

from typing import Final

import click


def _dynamo_worker() -> click.Command:
    from parts.dynamo.command import dynamo_worker

    return dynamo_worker


COMMANDS: Final = {"dynamo-worker": _dynamo_worker}
