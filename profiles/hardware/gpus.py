"""The GPUs that can be named, and how to recognise them.

Memory is what NVML reports for the whole board; capability, NVLink and the boards of a host are
those of NVIDIA's data sheets and reference systems.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A row of the table."""

    key: str  # what profiles and `--hardware` call it
    name: str  # as NVML tells it
    total_mib: int
    compute_capability: tuple[int, int]
    pci_devices: tuple[str, ...] = ()  # first: the board assumed for a written machine
    name_parts: tuple[str, ...] = ()  # what NVML's names of it hold, in small letters
    nvlink: int = 1  # GPUs of a host that NVLink joins, itself included; 1: PCIe alone
    per_host: int = 8  # maximum in one operating system
    is_unified: bool = False  # its memory is the machine's

    @property
    def total_bytes(self) -> int:
        return self.total_mib * MIB


_VOLTA, _TURING, _A100, _AMPERE, _ORIN, _ADA = (7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9)
_HOPPER, _B200, _B300, _THOR, _RTX_BLACKWELL = (9, 0), (10, 0), (10, 3), (11, 0), (12, 0)
_GB10 = (12, 1)

KNOWN_GPUS = (
    KnownGpu("v100", "Tesla V100-SXM2-32GB", 32768, _VOLTA, ("1db5", "1db6"), ("v100",), 8),
    KnownGpu("t4", "Tesla T4", 15360, _TURING, ("1eb8",), ("t4",)),
    KnownGpu("rtx5000", "Quadro RTX 5000", 16384, _TURING, ("1eb0",), ("quadro rtx 5000",)),
    KnownGpu("rtx6000", "Quadro RTX 6000", 24576, _TURING, ("1e30",), ("quadro rtx 6000",)),
    KnownGpu(
        "a100-40", "NVIDIA A100-SXM4-40GB", 40960, _A100, ("20b0", "20f1"),
        ("a100-sxm4-40gb", "a100-pcie-40gb"), 8, 16,
    ),
    KnownGpu(
        "a100", "NVIDIA A100-SXM4-80GB", 81920, _A100, ("20b2", "20b5", "20b3"), ("a100",), 8, 16
    ),
    KnownGpu("a30", "NVIDIA A30", 24576, _A100, ("20b7",), ("a30",)),
    KnownGpu("a40", "NVIDIA A40", 46068, _AMPERE, ("2235",), ("a40",)),
    KnownGpu("a10", "NVIDIA A10", 23028, _AMPERE, ("2236",), ("a10",)),
    KnownGpu("a10g", "NVIDIA A10G", 23028, _AMPERE, ("2237",), ("a10g",)),
    KnownGpu("rtx-a6000", "NVIDIA RTX A6000", 49140, _AMPERE, ("2230",), ("rtx a6000",)),
    KnownGpu("rtx-a5000", "NVIDIA RTX A5000", 24564, _AMPERE, ("2231",), ("rtx a5000",)),
    KnownGpu("rtx3060", "NVIDIA GeForce RTX 3060", 12288, _AMPERE, (), ("rtx 3060",)),
    KnownGpu("rtx3080", "NVIDIA GeForce RTX 3080", 10240, _AMPERE, ("2206",), ("rtx 3080",)),
    KnownGpu("rtx3090", "NVIDIA GeForce RTX 3090", 24576, _AMPERE, ("2204", "2203"), ("rtx 3090",)),
    KnownGpu(
        "orin", "Orin (nvgpu)", 62841, _ORIN, (), ("orin",), 1, 1, is_unified=True
    ),  # 64 GB; `sm87:32gb` is the smaller one
    KnownGpu("l4", "NVIDIA L4", 23034, _ADA, ("27b8",), ("l4",)),
    KnownGpu("l40", "NVIDIA L40", 46068, _ADA, ("26b5",), ("l40",)),
    KnownGpu("l40s", "NVIDIA L40S", 46068, _ADA, ("26b9",), ("l40s",)),
    KnownGpu(
        "rtx6000-ada", "NVIDIA RTX 6000 Ada Generation", 49140, _ADA, ("26b1",), ("rtx 6000 ada",)
    ),
    KnownGpu(
        "rtx5000-ada", "NVIDIA RTX 5000 Ada Generation", 32760, _ADA, ("26b2",), ("rtx 5000 ada",)
    ),
    KnownGpu(
        "rtx4060ti-16", "NVIDIA GeForce RTX 4060 Ti", 16380, _ADA, ("2805",), ("rtx 4060 ti",)
    ),
    KnownGpu("rtx4060", "NVIDIA GeForce RTX 4060", 8188, _ADA, ("2882",), ("rtx 4060",)),
    KnownGpu("rtx4070", "NVIDIA GeForce RTX 4070", 12282, _ADA, ("2786",), ("rtx 4070",)),
    KnownGpu("rtx4080", "NVIDIA GeForce RTX 4080", 16376, _ADA, ("2704", "2702"), ("rtx 4080",)),
    KnownGpu("rtx4090", "NVIDIA GeForce RTX 4090", 24564, _ADA, ("2684",), ("rtx 4090",)),
    KnownGpu("h100", "NVIDIA H100 80GB HBM3", 81559, _HOPPER, ("2330", "2336"), ("h100",), 8),
    KnownGpu(
        "h100-pcie", "NVIDIA H100 PCIe", 81559, _HOPPER, ("2331",), ("h100 pcie", "h100-pcie"), 2
    ),
    KnownGpu("h100-nvl", "NVIDIA H100 NVL", 95830, _HOPPER, ("2321",), ("h100 nvl",), 2),
    KnownGpu("h800", "NVIDIA H800", 81559, _HOPPER, ("2324",), ("h800",), 8),
    KnownGpu("h20-141", "NVIDIA H20-3e", 143771, _HOPPER, ("232c",), ("h20-3e",), 8),
    KnownGpu("h20", "NVIDIA H20", 97871, _HOPPER, ("2329",), ("h20",), 8),
    KnownGpu("h200", "NVIDIA H200", 143771, _HOPPER, ("2335",), ("h200",), 8),
    KnownGpu("h200-nvl", "NVIDIA H200 NVL", 143771, _HOPPER, ("233b",), ("h200 nvl",), 4),
    KnownGpu(
        "gh200", "NVIDIA GH200 480GB", 97871, _HOPPER, ("2342", "2345", "2348"), ("gh200",), 4, 4
    ),
    KnownGpu("gh200-144", "NVIDIA GH200 144G HBM3e", 147456, _HOPPER, (), ("gh200 144g",), 4, 4),
    KnownGpu("b100", "NVIDIA B100", 183359, _B200, (), ("b100",), 8),
    KnownGpu("b200", "NVIDIA B200", 183359, _B200, ("2901",), ("b200",), 8),
    KnownGpu("gb200", "NVIDIA GB200", 189471, _B200, ("2941",), ("gb200",), 4, 4),
    KnownGpu("b300", "NVIDIA B300 SXM6 AC", 275040, _B300, ("3182",), ("b300",), 8),
    KnownGpu("gb300", "NVIDIA GB300", 284208, _B300, ("31c2", "31c3"), ("gb300",), 4, 4),
    KnownGpu(
        "rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, _RTX_BLACKWELL,
        ("2bb5", "2bb1", "2bb4"), ("rtx pro 6000 blackwell",),
    ),
    KnownGpu(
        "rtx-pro-5000-72", "NVIDIA RTX PRO 5000 72GB Blackwell", 73415, _RTX_BLACKWELL, (),
        ("rtx pro 5000 72gb blackwell",),
    ),
    KnownGpu(
        "rtx-pro-5000", "NVIDIA RTX PRO 5000 Blackwell", 48935, _RTX_BLACKWELL, (),
        ("rtx pro 5000 blackwell",),
    ),
    KnownGpu(
        "rtx-pro-4500", "NVIDIA RTX PRO 4500 Blackwell", 32623, _RTX_BLACKWELL, (),
        ("rtx pro 4500 blackwell",),
    ),
    KnownGpu(
        "rtx5060ti-16", "NVIDIA GeForce RTX 5060 Ti", 16311, _RTX_BLACKWELL, (), ("rtx 5060 ti",)
    ),
    KnownGpu(
        "rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", 16303, _RTX_BLACKWELL, (), ("rtx 5070 ti",)
    ),
    KnownGpu(
        "rtx5080", "NVIDIA GeForce RTX 5080", 16303, _RTX_BLACKWELL, ("2c02",), ("rtx 5080",)
    ),
    KnownGpu(
        "rtx5090", "NVIDIA GeForce RTX 5090", 32607, _RTX_BLACKWELL, ("2b85",), ("rtx 5090",)
    ),
    # Their memory is the machine's: 128 GB, of which CUDA sees so much.
    KnownGpu("gb10", "NVIDIA GB10", 122572, _GB10, ("2e12",), ("gb10",), 1, 1, is_unified=True),
    KnownGpu("thor", "NVIDIA Thor", 125773, _THOR, (), ("thor",), 1, 1, is_unified=True),
)  # fmt: skip

BY_KEY = {gpu.key: gpu for gpu in KNOWN_GPUS}
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
