"""The command of the part."""

from __future__ import annotations

from typing import Final

from service.cli.loading import SERVE, LazyCommand

COMMANDS: Final = {
    "usage": LazyCommand(
        "parts.usage.command", "usage", SERVE, "Show requests and tokens by key, tenant or day."
    )
}
