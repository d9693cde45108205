"""The port of Ollama's API."""

from __future__ import annotations

from pydantic import Field

from service.settings.group import Group


class OllamaSettings(Group):
    """Ollama"""

    ollama_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Serve Ollama's API (`/api/chat` and others), and listen on this port as well; "
        "Ollama's own is 11434. 0: on `NIM_SERVER_PORT` only. Unset: its routes return 404.",
    )


SETTINGS = OllamaSettings
