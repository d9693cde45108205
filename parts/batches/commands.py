"""The command of the part."""

from __future__ import annotations

from typing import Final

from service.cli.loading import SERVE, LazyCommand

COMMANDS: Final = {
    "run-batch": LazyCommand(
        "parts.batches.command", "run_batch", SERVE, "Send a file of requests as a batch."
    )
}
