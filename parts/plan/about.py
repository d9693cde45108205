"""`harmonium plan`."""

from __future__ import annotations

from typing import Final

from engines.parts import PartAbout

ABOUT: Final = PartAbout(
    "Plan",
    "Estimates speed and the number of GPUs for a load, from a model of the hardware.",
    "docs/plan.md",
)
