"""LoRA adapters."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "LoRA",
    "Merges a LoRA adapter in PEFT's format into a checkpoint: `harmonium merge`.",
    "docs/weights.md",
)
