"""Redis."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Redis",
    "Shares stored responses, their jobs and the limits of callers between servers.",
    "docs/deploy.md",
)
