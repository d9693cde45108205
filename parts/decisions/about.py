"""Decisions."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Decisions",
    "Answers questions about a text with probabilities: `/v1/decisions` and `/v1/systemone`.",
    "docs/decisions-api.md",
)
