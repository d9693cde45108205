"""Where adapters are, and how many."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from service.settings.group import Group


class LoraSettings(Group):
    """LoRA adapters"""

    of_engine: ClassVar = ("peft_source",)

    peft_source: Path | None = Field(
        None,
        description="Folder with a subfolder for each LoRA adapter in PEFT's format. Requests name "
        "the subfolder in `model`.",
    )
    peft_refresh_interval: float | None = Field(
        None,
        ge=1,
        description="Seconds between two looks at that folder for adapters that came, changed or "
        "went. Unset: it is read at the start only.",
    )
    max_gpu_loras: int = Field(
        8,
        ge=1,
        le=256,
        description="Adapters that one step of the engine can compute with. In the "
        "native engine, requests to further ones wait.",
    )
    max_cpu_loras: int = Field(
        16, ge=1, le=4096, description="Adapters that the engine keeps in memory, those included."
    )
    max_lora_rank: int = Field(
        32, ge=1, le=512, description="The highest rank of an adapter's matrices."
    )


SETTINGS = LoraSettings
