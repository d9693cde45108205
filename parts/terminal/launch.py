"""What a start says of the commands."""

from __future__ import annotations

from typing import Final

from service.run.launching import LaunchPart
from service.settings.settings import Settings


class _Terminal(LaunchPart):
    def hint(self, settings: Settings, url: str) -> str:
        port = "" if settings.server_port == 8000 else f" --url {url}"
        return f"Chat in another terminal: `harmonium chat{port}`"


LAUNCH: Final = _Terminal()
