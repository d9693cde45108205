"""`harmonium plan`."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "Plan",
    "Estimates speed and the number of GPUs for a load, from a model of the hardware.",
    "docs/plan.md",
)
