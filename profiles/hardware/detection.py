"""Hardware detection: GPUs through NVML, the CPU from the system; never raises.

The only module that imports NVML, and only when asked for GPUs: a machine without
the library, the driver or a GPU is an ordinary answer, with the reason in words.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import psutil

from profiles.hardware.cgroup import CgroupLimits, read_limits
from profiles.hardware.gpus import BY_KEY, gpu_key
from profiles.hardware.machine import Cpu, Gpu, Hardware

# What a kernel might care about, as /proc/cpuinfo spells it on x86 and on Arm.
INSTRUCTION_SETS = (
    *("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve"),
)


def detect(nvml: Any = None) -> Hardware:
    """Describe this machine; `nvml` replaces the pynvml module."""
    cpu = detect_cpu()
    if nvml is None:
        try:
            nvml = _pynvml()
        except ImportError:
            return Hardware(cpu, no_gpu_reason="the nvidia-ml-py library is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Hardware(cpu, no_gpu_reason=_driver_reason(error))
    try:
        return _with_gpus(nvml, cpu)
    except nvml.NVMLError as error:
        return Hardware(cpu, no_gpu_reason=f"NVML failed while listing GPUs: {error}")
    finally:
        nvml.nvmlShutdown()


def open_nvml() -> Any:
    """Return the pynvml module, initialised and never closed; None without library or driver."""
    try:
        nvml = _pynvml()
        nvml.nvmlInit()
    except Exception:  # no library, no driver, or one that does not answer
        return None
    return nvml


def _pynvml() -> Any:
    import pynvml  # absent where there is no NVIDIA library

    return pynvml


def detect_cpu(proc: Path = Path("/proc"), limits: CgroupLimits | None = None) -> Cpu:
    """Describe the processors this process may use: affinity, cgroup quota and limit."""
    limits = read_limits(proc) if limits is None else limits
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    if limits.memory_bytes is not None:
        total = min(total, limits.memory_bytes)
        free = max(0, min(free, limits.memory_bytes - (limits.used_bytes or 0)))
    cores = _num_cores()
    if limits.num_cores is not None:
        cores = max(1, min(cores, ceil(limits.num_cores)))
    info = _cpu_info(proc)
    flags = set((info.get("flags") or info.get("Features") or "").split())
    model = info.get("model name") or platform.processor() or platform.machine()
    return Cpu(model, cores, total, free, tuple(n for n in INSTRUCTION_SETS if n in flags))


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_info(proc: Path) -> dict[str, str]:
    try:
        text = (proc / "cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _with_gpus(nvml: Any, cpu: Cpu) -> Hardware:
    gpus: list[Gpu] = []
    warnings: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found = _board(nvml, index, cpu)
        except nvml.NVMLError as error:
            warnings.append(f"GPU {index} cannot be used: {error}")
        else:
            gpus.extend(found)
            if not found:
                warnings.append(f"GPU {index} cannot be used: it is in MIG mode without slices")
    return Hardware(
        cpu,
        tuple(gpus),
        no_gpu_reason="" if gpus else "; ".join(warnings) or "the NVIDIA driver lists no GPU",
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
        warnings=tuple(warnings),
    )


def _board(nvml: Any, index: int, cpu: Cpu) -> list[Gpu]:
    """Return the board as one GPU, or its slices: in MIG mode the whole cannot be used."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    if not _is_mig(nvml, handle):
        return [_gpu(nvml, index, handle, cpu)]
    return [_gpu(nvml, index, part, cpu, parent=handle) for part in _mig_slices(nvml, handle)]


def _is_mig(nvml: Any, handle: Any) -> bool:
    try:
        mode, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False  # boards without MIG answer 'not supported'
    return bool(mode == nvml.NVML_DEVICE_MIG_ENABLE)


def _mig_slices(nvml: Any, handle: Any) -> Iterator[Any]:
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:
            continue  # this number holds no slice


def _gpu(nvml: Any, index: int, handle: Any, cpu: Cpu, parent: Any = None) -> Gpu:
    board = handle if parent is None else parent
    name = _text(nvml.nvmlDeviceGetName(handle))
    pci_id = _pci_id(nvml.nvmlDeviceGetPciInfo(board).pciDeviceId)
    key = gpu_key(name, pci_id) if parent is None else None
    is_unified = BY_KEY[key].is_unified if key else False
    total, free = _memory(nvml, handle, cpu if is_unified else None)
    return Gpu(
        index=index,
        name=name,
        key=key,
        pci_id=pci_id,
        compute_capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(board)),
        total_bytes=total,
        free_bytes=free,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        is_mig=parent is not None,
        is_unified=is_unified,
        nvlink=_num_joined(key) if parent is None and _has_nvlink(nvml, board) else 1,
    )


def _memory(nvml: Any, handle: Any, machine: Cpu | None) -> tuple[int, int]:
    """Total and free bytes of a GPU; `machine` has them where the memory is one for both.

    NVML answers 'not supported' for such memory.
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        if machine is None:
            raise
        return machine.total_bytes, machine.free_bytes
    return int(memory.total), int(memory.free)


def _has_nvlink(nvml: Any, board: Any) -> bool:
    """Whether any of its links is up; a board without links answers 'not supported'."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(board, link) == nvml.NVML_FEATURE_ENABLED:
                return True
        except nvml.NVMLError:
            return False
    return False


def _num_joined(key: str | None) -> int:
    """How many GPUs the links join: what is known of the board, else the pair of a bridge."""
    return max(2, BY_KEY[key].nvlink if key else 2)


def _pci_id(device_and_vendor: int) -> str:
    """Turn NVML's 0x233510de into '2335:10de'."""
    return f"{device_and_vendor >> 16:04x}:{device_and_vendor & 0xFFFF:04x}"


def _text(value: str | bytes) -> str:
    """Return NVML's words as text: its bindings before 11.5 answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _driver_reason(error: Exception) -> str:
    if type(error).__name__ == "NVMLError_LibraryNotFound":
        return "no NVIDIA driver is installed (libnvidia-ml.so.1 was not found)"
    if type(error).__name__ == "NVMLError_DriverNotLoaded":
        return "the NVIDIA driver is installed but not loaded"
    return f"NVML could not start: {error}"
