"""Whether Ollama's port is free, before anything starts."""

from __future__ import annotations

from typing import Final

from parts.ollama.listening import check_free
from parts.ollama.settings import OllamaSettings
from service.run.launching import LaunchPart
from service.settings.settings import Settings


class _Ollama(LaunchPart):
    def check_server(self, settings: Settings) -> None:
        port = settings.of(OllamaSettings).ollama_port
        if port and port != settings.server_port:
            check_free(settings.server_host, port)


LAUNCH: Final = _Ollama()
