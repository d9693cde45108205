"""The GPUs that profiles may name, and how to recognise them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A row of the table; memory is what NVML reports for the whole board."""

    key: str
    name: str
    total_mib: int
    compute_capability: tuple[int, int]
    pci_devices: tuple[str, ...]  # first: the board assumed for a hardware string

    @property
    def total_bytes(self) -> int:
        return self.total_mib * MIB


KNOWN_GPUS = (
    KnownGpu("a100-40", "NVIDIA A100-SXM4-40GB", 40960, (8, 0), ("20b0", "20f1")),
    KnownGpu("a100", "NVIDIA A100-SXM4-80GB", 81920, (8, 0), ("20b2", "20b5", "20b3")),
    KnownGpu("a10g", "NVIDIA A10G", 23028, (8, 6), ("2237",)),
    KnownGpu("l4", "NVIDIA L4", 23034, (8, 9), ("27b8",)),
    KnownGpu("l40s", "NVIDIA L40S", 46068, (8, 9), ("26b9",)),
    KnownGpu("h100", "NVIDIA H100 80GB HBM3", 81559, (9, 0), ("2330", "2331", "2336")),
    KnownGpu("h100-nvl", "NVIDIA H100 NVL", 95830, (9, 0), ("2321",)),
    KnownGpu("h200", "NVIDIA H200", 143771, (9, 0), ("2335",)),
    KnownGpu("h200-nvl", "NVIDIA H200 NVL", 143771, (9, 0), ("233b",)),
    KnownGpu("gh200", "NVIDIA GH200 480GB", 97871, (9, 0), ("2342", "2345", "2348")),
    KnownGpu("b200", "NVIDIA B200", 183359, (10, 0), ("2901",)),
    KnownGpu("gb200", "NVIDIA GB200", 189471, (10, 0), ("2941",)),
    KnownGpu("b300", "NVIDIA B300 SXM6 AC", 275040, (10, 3), ("3182",)),
    KnownGpu("gb300", "NVIDIA GB300", 284208, (10, 3), ("31c2", "31c3")),
    KnownGpu(
        "rtx-pro-6000",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        97887,
        (12, 0),
        ("2bb5", "2bb1", "2bb4"),
    ),
)

BY_KEY = {gpu.key: gpu for gpu in KNOWN_GPUS}
_BY_PCI_DEVICE = {device: gpu.key for gpu in KNOWN_GPUS for device in gpu.pci_devices}
# Longest first, so that 'H200 NVL' is not taken for 'H200' nor 'GB200' for 'B200'.
_NAME_PARTS = (
    ("rtx pro 6000 blackwell", "rtx-pro-6000"),
    ("a100-sxm4-40gb", "a100-40"),
    ("a100-pcie-40gb", "a100-40"),
    ("h100 nvl", "h100-nvl"),
    ("h200 nvl", "h200-nvl"),
    ("gh200", "gh200"),
    ("gb200", "gb200"),
    ("gb300", "gb300"),
    ("a100", "a100"),
    ("h100", "h100"),
    ("h200", "h200"),
    ("b200", "b200"),
    ("b300", "b300"),
    ("l40s", "l40s"),
    ("a10g", "a10g"),
)


def gpu_key(name: str, pci_id: str) -> str | None:
    """Recognise a GPU by its PCI id ('2335:10de'), else by its name, else not at all."""
    key = _BY_PCI_DEVICE.get(pci_id.partition(":")[0].lower())
    if key is not None:
        return key
    lowered = name.lower()
    return next((key for part, key in _NAME_PARTS if part in lowered), None)
