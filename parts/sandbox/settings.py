"""Which built-in tools run here, and what the browser searches by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from service.settings.group import Group, words

TOOLS: Final = ("python", "browser")
WITH_KEY: Final = ("brave", "tavily", "you")


class SandboxSettings(Group):
    """Built-in tools that run here"""

    secrets: ClassVar[tuple[str, ...]] = ("browser_search_key",)

    builtin_tools: str = Field(
        "",
        description="`python`, `browser` or `python,browser`: this machine runs these built-in "
        "tools, each answer's in a sandbox of its own: `python` without network, `browser` with "
        "the public web. They need bubblewrap and user namespaces. `python@FOLDER`: it runs beside "
        "the server, and its socket is in that folder.",
    )
    browser_search: str = Field(
        "",
        description="What `browser` searches by: the URL of a SearXNG that gives JSON, e.g. "
        "`http://searxng:8080`, or `brave`, `tavily` or `you`.",
    )
    browser_search_key: SecretStr | None = Field(
        None, description="Key of that search service; Brave, Tavily and You need one."
    )

    @field_validator("builtin_tools")
    @classmethod
    def _check_known(cls, value: str) -> str:
        for word in words(value):
            if (tool := word.partition("@")[0]) not in TOOLS:
                raise ValueError(f"{tool!r} does not run here; {' and '.join(TOOLS)} do")
        return value

    @field_validator("browser_search")
    @classmethod
    def _check_service(cls, value: str) -> str:
        url = urlsplit(value)
        is_url = url.scheme in ("http", "https") and url.hostname
        if value and value not in WITH_KEY and not is_url:
            raise ValueError(f"{value!r} is not the URL of a SearXNG, {', '.join(WITH_KEY)}")
        return value

    @property
    def tools_here(self) -> Mapping[str, Path | None]:
        """The tools that run here; the folder of those that a host beside the server runs."""
        named = (word.partition("@") for word in words(self.builtin_tools))
        return {tool: Path(folder) if folder else None for tool, _, folder in named}

    def fault(self, tool: str) -> str | None:
        """What is not set that a tool needs; None if nothing."""
        if tool != "browser":
            return None
        if not self.browser_search:
            names = ", ".join(WITH_KEY)
            return f"set NIM_BROWSER_SEARCH to the URL of a SearXNG, or to one of {names}"
        if self.browser_search in WITH_KEY and not self.browser_search_key:
            return f"{self.browser_search} needs a key: set NIM_BROWSER_SEARCH_KEY"
        return None

    @property
    def search_service(self) -> dict[str, str]:
        """What the browser's guest needs to know."""
        key = self.browser_search_key
        return {"name": self.browser_search, "key": key.get_secret_value() if key else ""}


SETTINGS = SandboxSettings
