"""What a machine has, as plain data: written by hardware.py, read by the selector."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

GB = 10**9  # memory is in GB as on data sheets; NVML and psutil count bytes

Family = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "other"]

_FAMILY_BY_MAJOR: dict[int, Family] = {
    7: "turing",
    9: "hopper",
    10: "blackwell",
    11: "blackwell",
    12: "blackwell",
}


def family_of(compute_capability: tuple[int, int]) -> Family:
    """Return the GPU generation of a compute capability, 'other' when unknown."""
    if compute_capability in ((7, 0), (7, 2)):
        return "volta"
    if compute_capability[0] == 8:
        return "ada" if compute_capability == (8, 9) else "ampere"
    return _FAMILY_BY_MAJOR.get(compute_capability[0], "other")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG slice of a GPU."""

    index: int
    name: str  # as NVML tells it: 'NVIDIA H200'
    key: str | None  # the name profiles use ('h200'); None when this GPU is in no table
    pci_id: str  # device and vendor, '2335:10de'
    compute_capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    uuid: str = ""
    is_mig: bool = False
    nvlink: int = 1  # GPUs of its host that NVLink joins, itself included; 1: PCIe alone
    is_unified: bool = False  # its memory is the machine's, which others use too
    host: int = 0  # which operating system has it; a found machine is one, a written rack is many

    @property
    def family(self) -> Family:
        return family_of(self.compute_capability)


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors and memory this process may really use."""

    model: str
    num_cores: int  # after affinity and cgroup quota
    total_bytes: int  # after the cgroup limit
    free_bytes: int
    instruction_sets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine, detected or assumed."""

    cpu: Cpu
    gpus: tuple[Gpu, ...] = ()
    no_gpu_reason: str = ""  # set whenever `gpus` is empty
    driver: str = ""
    warnings: tuple[str, ...] = ()  # GPUs that are there but cannot be used
    is_assumed: bool = False  # written down by a user ('h200x8') rather than found

    @property
    def summary(self) -> str:
        """Name the machine in a few words: '8 x NVIDIA H200' or '2 CPU cores, no GPU'."""
        if not self.gpus:
            cores = "core" if self.cpu.num_cores == 1 else "cores"
            return f"{self.cpu.num_cores} CPU {cores}, no GPU"
        return describe_gpus(self.gpus)


def describe_gpus(gpus: tuple[Gpu, ...]) -> str:
    """Return '1 x NVIDIA H200, 2 x NVIDIA L40S', or 'no GPU'."""
    counts = Counter(gpu.name for gpu in gpus)
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no GPU"
