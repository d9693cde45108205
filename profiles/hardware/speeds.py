"""What a GPU can do at most: memory bandwidth, bf16 operations, the link to its neighbours.

Data sheet values; what an engine reaches of them is calibrated (tools/roofline). The tables of
gpus.py say what there is, this one how fast it is, under the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from profiles.hardware.machine import Family, Gpu

Architecture = Literal["older", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx"]


@dataclass(frozen=True, slots=True)
class GpuSpeed:
    """A row of the table."""

    key: str
    architecture: Architecture
    memory_tb_per_s: float
    bf16_tflops: float  # dense, accumulating in fp32; fp16 where there is no bf16
    link_gb_per_s: float  # to other GPUs, one way
    num_linked: int  # GPUs that NVLink joins; more, or all where it is 1, talk over PCIe


_PCIE_3, _PCIE_4, _PCIE_5 = 16.0, 32.0, 64.0
_SPEEDS = (
    GpuSpeed("v100", "older", 0.900, 125, 150, 8),
    GpuSpeed("t4", "older", 0.320, 65, _PCIE_3, 1),
    GpuSpeed("rtx5000", "older", 0.448, 89, _PCIE_3, 1),
    GpuSpeed("rtx6000", "older", 0.672, 130, _PCIE_3, 1),
    GpuSpeed("a100-40", "ampere", 1.555, 312, 300, 8),
    GpuSpeed("a100", "ampere", 2.039, 312, 300, 8),
    GpuSpeed("a30", "ampere", 0.933, 165, _PCIE_4, 1),
    GpuSpeed("a40", "ampere", 0.696, 150, _PCIE_4, 1),
    GpuSpeed("a10", "ampere", 0.600, 125, _PCIE_4, 1),
    GpuSpeed("a10g", "ampere", 0.600, 70, _PCIE_4, 1),
    GpuSpeed("rtx-a6000", "ampere", 0.768, 155, _PCIE_4, 1),
    GpuSpeed("rtx-a5000", "ampere", 0.768, 111, _PCIE_4, 1),
    GpuSpeed("rtx3060", "ampere", 0.360, 25, _PCIE_4, 1),
    GpuSpeed("rtx3080", "ampere", 0.760, 60, _PCIE_4, 1),
    GpuSpeed("rtx3090", "ampere", 0.936, 71, _PCIE_4, 1),
    GpuSpeed("orin", "ampere", 0.205, 43, 10, 1),
    GpuSpeed("l4", "ada", 0.300, 121, _PCIE_4, 1),
    GpuSpeed("l40", "ada", 0.864, 181, _PCIE_4, 1),
    GpuSpeed("l40s", "ada", 0.864, 362, _PCIE_4, 1),
    GpuSpeed("rtx6000-ada", "ada", 0.960, 364, _PCIE_4, 1),
    GpuSpeed("rtx5000-ada", "ada", 0.576, 261, _PCIE_4, 1),
    GpuSpeed("rtx4060", "ada", 0.272, 30, _PCIE_4, 1),
    GpuSpeed("rtx4060ti-16", "ada", 0.288, 44, _PCIE_4, 1),
    GpuSpeed("rtx4070", "ada", 0.504, 58, _PCIE_4, 1),
    GpuSpeed("rtx4080", "ada", 0.717, 97, _PCIE_4, 1),
    GpuSpeed("rtx4090", "ada", 1.008, 165, _PCIE_4, 1),
    GpuSpeed("h100", "hopper", 3.35, 989, 450, 8),
    GpuSpeed("h100-pcie", "hopper", 2.0, 756, 300, 2),
    GpuSpeed("h100-nvl", "hopper", 3.9, 835, 300, 2),
    GpuSpeed("h800", "hopper", 3.35, 989, 200, 8),
    GpuSpeed("h20", "hopper", 4.0, 148, 450, 8),
    GpuSpeed("h20-141", "hopper", 4.8, 148, 450, 8),
    GpuSpeed("h200", "hopper", 4.8, 989, 450, 8),
    GpuSpeed("h200-nvl", "hopper", 4.8, 835, 450, 4),
    GpuSpeed("gh200", "hopper", 4.0, 989, 450, 4),
    GpuSpeed("gh200-144", "hopper", 4.9, 989, 450, 4),
    GpuSpeed("b100", "blackwell", 8.0, 1750, 900, 8),
    GpuSpeed("b200", "blackwell", 8.0, 2250, 900, 8),
    GpuSpeed("gb200", "blackwell", 8.0, 2500, 900, 72),
    GpuSpeed("b300", "blackwell", 8.0, 2250, 900, 8),
    GpuSpeed("gb300", "blackwell", 8.0, 2500, 900, 72),
    GpuSpeed("thor", "blackwell", 0.273, 250, 25, 1),
    GpuSpeed("rtx-pro-6000", "blackwell-rtx", 1.597, 500, _PCIE_5, 1),
    GpuSpeed("rtx-pro-5000", "blackwell-rtx", 1.344, 275, _PCIE_5, 1),
    GpuSpeed("rtx-pro-5000-72", "blackwell-rtx", 1.344, 275, _PCIE_5, 1),
    GpuSpeed("rtx-pro-4500", "blackwell-rtx", 0.896, 211, _PCIE_5, 1),
    GpuSpeed("rtx5060ti-16", "blackwell-rtx", 0.448, 47, _PCIE_5, 1),
    GpuSpeed("rtx5070ti", "blackwell-rtx", 0.896, 88, _PCIE_5, 1),
    GpuSpeed("rtx5080", "blackwell-rtx", 0.960, 113, _PCIE_5, 1),
    GpuSpeed("rtx5090", "blackwell-rtx", 1.792, 210, _PCIE_5, 1),
    GpuSpeed("gb10", "blackwell-rtx", 0.273, 125, 25, 1),
)
SPEEDS = {speed.key: speed for speed in _SPEEDS}

# Of a GPU that is in no table, and of a slice: what its generation's slowest board has.
_OF_FAMILY: Mapping[Family, float] = {"hopper": 2.0, "blackwell": 0.273, "ada": 0.272}


def memory_tb_per_s(gpu: Gpu) -> float:
    """The memory bandwidth of a GPU, by which GPUs of different kinds are compared."""
    if gpu.key in SPEEDS:
        return SPEEDS[gpu.key].memory_tb_per_s
    return _OF_FAMILY.get(gpu.family, 0.2)
