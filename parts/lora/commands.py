"""The command of the part."""

from __future__ import annotations

from typing import Final

from service.cli.loading import FILES, LazyCommand

COMMANDS: Final = {
    "merge": LazyCommand(
        "parts.lora.command", "merge", FILES, "Merge a LoRA adapter into a checkpoint."
    )
}
