"""The command of the part."""

from __future__ import annotations

from typing import Final

from service.cli.loading import command

COMMANDS: Final = {"verify": command("parts.verify.command", "verify")}
