"""The settings of built-in tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, SecretStr, field_validator

from service.settings.group import Group
from service.tools import MAX_CALLS, MAX_RESULT_BYTES


class ToolSettings(Group):
    """Built-in tools"""

    secrets: ClassVar[tuple[str, ...]] = ("browser_mcp_url", "python_mcp_url")
    constants: ClassVar[Mapping[str, str]] = {
        "mcp_max_calls": str(MAX_CALLS),
        "mcp_max_result_bytes": str(MAX_RESULT_BYTES),
    }

    browser_mcp_url: SecretStr | None = Field(
        None,
        description="URL of the MCP server that runs the built-in tool `browser`, e.g. "
        "`http://host:8001/mcp`, or `.../sse` for the older transport. Unset: the tool is "
        "not offered.",
    )
    python_mcp_url: SecretStr | None = Field(
        None,
        description="URL of the MCP server that runs the built-in tool `python`. Unset: the "
        "tool is not offered.",
    )
    mcp_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Timeout of one call of a built-in tool, in seconds."
    )

    @field_validator("browser_mcp_url", "python_mcp_url")
    @classmethod
    def _check_http(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not value.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("the URL must begin with http:// or https://")
        return value


SETTINGS = ToolSettings
