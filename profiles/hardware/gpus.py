"""The GPUs that can be named, how to recognise them and what they can do: data/gpus.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

Architecture = Literal["older", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx"]

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MIB: Final = 1024**2
_FILE: Final = Path(__file__).parents[1] / "data" / "gpus.yaml"
_ARCHITECTURES: Final[dict[int, Architecture]] = {
    8: "ampere", 9: "hopper", 10: "blackwell", 11: "blackwell", 12: "blackwell-rtx",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A row of the table. What an engine reaches of the speeds is calibrated (tools/roofline)."""

    key: str  # what profiles and `--hardware` call it
    name: str  # as NVML tells it
    total_mib: int
    compute_capability: tuple[int, int]
    memory_tb_per_s: float
    bf16_tflops: float  # dense, accumulating in fp32; fp16 where there is no bf16
    link_gb_per_s: float  # to other GPUs, one way
    pci_devices: tuple[str, ...] = ()  # first: the board assumed for a written machine
    name_parts: tuple[str, ...] = ()  # what NVML's names of it hold, in small letters
    nvlink: int = 1  # GPUs of a host that NVLink joins, itself included; 1: PCIe alone
    rack: int = 0  # GPUs that NVLink joins, where these are more than a host has
    per_host: int = 8  # maximum in one operating system
    is_unified: bool = False  # its memory is the machine's: of 128 GB CUDA sees so much

    @property
    def total_bytes(self) -> int:
        return self.total_mib * MIB

    @property
    def num_linked(self) -> int:
        """GPUs that NVLink joins; more, or all where it is 1, talk over PCIe."""
        return self.rack or self.nvlink

    @property
    def architecture(self) -> Architecture:
        if self.compute_capability == (8, 9):
            return "ada"
        return _ARCHITECTURES.get(self.compute_capability[0], "older")


def _row(key: str, fields: dict[str, Any]) -> KnownGpu:
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    given: dict[str, Any] = fields | lists
    return KnownGpu(key, **given)


KNOWN_GPUS: Final = tuple(
    _row(*row) for row in yaml.load(_FILE.read_text(encoding="utf-8"), Loader=LOADER).items()
)
BY_KEY: Final = {gpu.key: gpu for gpu in KNOWN_GPUS}
# Other names that people write.
ALIASES = {"jetson-thor": "thor", "jetson-orin": "orin", "agx-orin": "orin", "dgx-spark": "gb10"}
_BY_PCI_DEVICE = {device: gpu.key for gpu in KNOWN_GPUS for device in gpu.pci_devices}
# Longest first, so that 'H200 NVL' is not taken for 'H200'.
_NAME_PARTS = sorted(
    ((part, gpu.key) for gpu in KNOWN_GPUS for part in gpu.name_parts),
    key=lambda pair: -len(pair[0]),
)


def gpu_key(name: str, pci_id: str) -> str | None:
    """Recognise a GPU by its PCI id ('2335:10de'), else by its name, else not at all."""
    key = _BY_PCI_DEVICE.get(pci_id.partition(":")[0].lower())
    if key is not None:
        return key
    lowered = name.lower()
    return next((key for part, key in _NAME_PARTS if re.search(rf"\b{part}\b", lowered)), None)
