"""The commands of the part."""

from __future__ import annotations

from typing import Final

from service.cli.loading import command

COMMANDS: Final = {
    "bench": command("parts.terminal.bench.command", "bench"),
    "chat": command("parts.terminal.chat.command", "chat"),
    "clients": command("parts.terminal.clients.command", "clients"),
}
