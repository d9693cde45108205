"""Commands of a terminal that ask a server."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Terminal",
    "`harmonium chat`, `bench` and `clients`: talk to a server, measure it, point agents at it.",
    "docs/cli.md",
)
