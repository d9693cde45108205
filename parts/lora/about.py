"""LoRA adapters."""

from engines.parts import PartAbout

ABOUT = PartAbout(
    "LoRA",
    "Serves LoRA adapters in PEFT's format beside the model with vLLM (`NIM_PEFT_SOURCE`), and "
    "merges one into a checkpoint: `harmonium merge`.",
    "docs/guides/lora.md",
)
