"""Built-in tools."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Built-in tools",
    "Runs the tools `browser` and `python` within an answer, on MCP servers.",
    "docs/api.md",
)
