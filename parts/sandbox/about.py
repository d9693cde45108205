"""The built-in tool `python`, without a server."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Python sandbox",
    "Runs the built-in tool `python` in a sandbox of bubblewrap: `NIM_BUILTIN_TOOLS=python`.",
    "docs/api.md",
)
