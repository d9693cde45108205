"""Drafts from what the text has repeated."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Drafts",
    "Proposes the next tokens where a text repeats itself, and has one step verify several.",
    "docs/engine.md",
)
