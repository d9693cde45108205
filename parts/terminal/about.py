"""Commands of a terminal that ask a server."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Terminal",
    "`harmonium chat`, `bench` and `clients`: talk to a server, measure it, point agents at it.",
    "docs/cli.md",
)
