"""Which built-in tools run here."""

from __future__ import annotations

from typing import Final

from pydantic import Field, field_validator

from service.settings.group import Group

TOOLS: Final = ("python",)


class SandboxSettings(Group):
    """Built-in tools that run here"""

    builtin_tools: str = Field(
        "",
        description="`python`: this machine runs the built-in tool `python`, each answer's in a "
        "sandbox of its own without network. It needs bubblewrap and user namespaces.",
    )

    @field_validator("builtin_tools")
    @classmethod
    def _check_known(cls, value: str) -> str:
        for tool in filter(None, map(str.strip, value.split(","))):
            if tool not in TOOLS:
                hint = "; for browser set NIM_BROWSER_MCP_URL" if tool == "browser" else ""
                raise ValueError(f"{tool!r} does not run here, python does{hint}")
        return value

    @property
    def has_python(self) -> bool:
        """Whether `python` runs here."""
        return bool(self.builtin_tools.strip(" ,"))


SETTINGS = SandboxSettings
