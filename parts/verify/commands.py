"""The command of the part."""

from __future__ import annotations

from typing import Final

from service.cli.loading import MEASURE, LazyCommand

COMMANDS: Final = {
    "verify": LazyCommand(
        "parts.verify.command", "verify", MEASURE, "Compare the engine with transformers."
    )
}
