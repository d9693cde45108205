"""Built-in tools."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Built-in tools",
    "Runs the tools `browser` and `python` within an answer, on MCP servers.",
    "docs/api.md",
)
