"""The command, loaded when it is typed."""

from __future__ import annotations

from typing import Final

from service.cli.loading import SERVE, LazyCommand

COMMANDS: Final = {
    "dynamo-worker": LazyCommand(
        "parts.dynamo.command", "dynamo_worker", SERVE, "Join an NVIDIA Dynamo deployment."
    )
}
