"""The built-in tools `python` and `browser`, without a server."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Tools in a sandbox",
    "Runs the built-in tools `python` and `browser` in sandboxes of bubblewrap: "
    "`NIM_BUILTIN_TOOLS=python,browser`.",
    "docs/api.md",
)
