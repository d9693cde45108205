"""The command of the part."""

from __future__ import annotations

from typing import Final

from service.cli.loading import LOOK, LazyCommand

COMMANDS: Final = {
    "plan": LazyCommand("parts.plan.command", "plan", LOOK, "Estimate speed and GPUs for a load.")
}
