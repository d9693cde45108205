"""Moderations."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Moderations",
    "Rates texts by the categories of the operator's policy: `/v1/moderations`.",
    "docs/guides/moderations.md",
)
