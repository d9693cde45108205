"""LoRA adapters."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "LoRA",
    "Serves LoRA adapters in PEFT's format beside the model (`NIM_PEFT_SOURCE`), with vLLM or "
    "natively, and merges one into a checkpoint: `harmonium merge`.",
    "docs/guides/lora.md",
)
