"""`harmonium verify`."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Verify",
    "Compares the engine with transformers: perplexity and greedy tokens of fixed texts.",
    "docs/weights.md",
)
