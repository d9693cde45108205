"""Redis."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Redis",
    "Shares stored responses, their jobs and the limits of callers between servers.",
    "docs/deploy.md",
)
