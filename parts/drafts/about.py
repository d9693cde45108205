"""Drafts from what the text has repeated."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Drafts",
    "Proposes the next tokens where a text repeats itself, and has one step verify several.",
    "docs/engine.md",
)
