"""Compaction."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Compaction",
    "Makes long conversations short: summaries by the model, encrypted and bound to the tenant.",
    "docs/api.md",
)
