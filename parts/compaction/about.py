"""Compaction."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Compaction",
    "Makes long conversations short: summaries by the model, encrypted and bound to the tenant.",
    "docs/api.md",
)
