"""The commands of the part."""

from __future__ import annotations

from typing import Final

from service.cli.loading import MEASURE, SERVE, LazyCommand

COMMANDS: Final = {
    "bench": LazyCommand(
        "parts.terminal.bench.command", "bench", MEASURE, "Measure the speed of any server."
    ),
    "chat": LazyCommand(
        "parts.terminal.chat.command", "chat", SERVE, "Chat with a server in the terminal."
    ),
    "clients": LazyCommand(
        "parts.terminal.clients.command", "clients", SERVE, "Print a coding agent's configuration."
    ),
}
