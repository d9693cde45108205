"""Where on a machine a profile fits, or in one sentence why it does not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from profiles.machine import GB, Gpu, Hardware, describe_gpus
from profiles.memory import MemoryNeed, memory_need
from profiles.models import GpuRequirement, Profile


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices a profile would use; no GPU at all for a CPU profile."""

    gpus: tuple[Gpu, ...]
    need: MemoryNeed
    usable_bytes: int  # of the device with the least
    num_replicas: int = 1  # engines that share the devices out

    @property
    def kv_tokens(self) -> int:
        """How many tokens of context the devices hold together, in one sequence."""
        return self.need.num_tokens(self.usable_bytes)

    @property
    def by_replica(self) -> tuple[tuple[Gpu, ...], ...]:
        """The GPUs of each engine."""
        each = len(self.gpus) // self.num_replicas
        return tuple(self.gpus[i * each : (i + 1) * each] for i in range(self.num_replicas))


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a profile does not fit, and the context length with which it would."""

    reason: str
    max_model_len: int | None = None
    cause: str = ""  # why no GPU will do, in words that fit every profile


def place(
    profile: Profile, hardware: Hardware, max_model_len: int, num_replicas: int = 1
) -> Placement | Shortage:
    """Put `profile` on the devices with the most free memory, neighbours or not."""
    if profile.gpu is None:
        usable = int(
            min(hardware.cpu.free_bytes, profile.memory_fraction * hardware.cpu.total_bytes)
        )
        return _fit(profile, (), usable // num_replicas, max_model_len, num_replicas)
    num_gpus = num_replicas * profile.num_devices
    matching = tuple(gpu for gpu in hardware.gpus if _matches(gpu, profile.gpu))
    # Several GPUs must be alike, and slices of a GPU cannot talk to each other.
    groups = [
        group
        for group in _alike(matching)
        if len(group) >= num_gpus and not (profile.num_devices > 1 and group[0].is_mig)
    ]
    if not groups:
        return Shortage(_wrong_gpus(profile, hardware, num_gpus), cause=_no_gpus_for_it(hardware))
    best = max((group[:num_gpus] for group in groups), key=lambda g: _usable(g, profile))
    return _fit(profile, best, _usable(best, profile), max_model_len, num_replicas)


def _matches(gpu: Gpu, requirement: GpuRequirement) -> bool:
    if requirement.names and gpu.key not in requirement.names:
        return False
    if requirement.family is not None and gpu.family != requirement.family:
        return False
    if gpu.total_bytes < (requirement.min_memory_gb or 0) * GB:
        return False
    lowest = requirement.min_compute_capability
    return lowest is None or gpu.compute_capability >= lowest


def _alike(gpus: tuple[Gpu, ...]) -> list[tuple[Gpu, ...]]:
    """Group GPUs of one name, each group ordered by free memory, most first."""
    by_name = sorted(gpus, key=lambda gpu: (gpu.name, -gpu.free_bytes, gpu.index))
    return [tuple(group) for _, group in groupby(by_name, key=lambda gpu: gpu.name)]


def _usable(gpus: tuple[Gpu, ...], profile: Profile) -> int:
    fraction = profile.memory_fraction
    return min(int(min(gpu.free_bytes, fraction * gpu.total_bytes)) for gpu in gpus)


def _fit(
    profile: Profile, gpus: tuple[Gpu, ...], usable: int, max_model_len: int, num_replicas: int
) -> Placement | Shortage:
    need = memory_need(profile)
    if need.total_bytes(max_model_len) <= usable:
        return Placement(gpus, need, usable, num_replicas)
    fitting = need.max_model_len(usable)
    each = " on each GPU" if len(gpus) > 1 else ""
    kv_bytes = need.total_bytes(max_model_len) - need.fixed_bytes
    reason = (
        f"needs {_gb(need.total_bytes(max_model_len))}{each} ({_gb(need.weights_bytes)} weights, "
        f"{_gb(need.workspace_bytes)} workspace, {_gb(kv_bytes)} for one sequence of "
        f"{max_model_len:,} tokens), found {_gb(usable)} usable {_on(gpus)}"
    )
    if fitting == 0:
        return Shortage(reason)
    return Shortage(f"{reason}; a context of {fitting:,} tokens would fit", fitting)


def _on(gpus: tuple[Gpu, ...]) -> str:
    if not gpus:
        return "of the machine's memory"
    return f"on {describe_gpus(gpus)}"


def _wrong_gpus(profile: Profile, hardware: Hardware, num_gpus: int) -> str:
    assert profile.gpu is not None
    wanted = f"needs {_wanted(profile.gpu, num_gpus)}"
    if not hardware.gpus:
        return f"{wanted}, found none: {hardware.no_gpu_reason}"
    return f"{wanted}, found {describe_gpus(hardware.gpus)}{_shortcoming(profile.gpu, hardware)}"


def _no_gpus_for_it(hardware: Hardware) -> str:
    if not hardware.gpus:
        return f"needs NVIDIA GPUs, found none: {hardware.no_gpu_reason}"
    return f"needs other GPUs, or more of them, than {describe_gpus(hardware.gpus)}"


def _shortcoming(requirement: GpuRequirement, hardware: Hardware) -> str:
    """Name the figure by which every GPU of the machine falls short, if there is one."""
    lowest = requirement.min_compute_capability
    have = max(gpu.compute_capability for gpu in hardware.gpus)
    if lowest and have < lowest:
        return f" of compute capability {_version(have)}"
    most = max(gpu.total_bytes for gpu in hardware.gpus)
    if most < (requirement.min_memory_gb or 0) * GB:
        return f" with {_gb(most)}"
    return ""


def _wanted(requirement: GpuRequirement, count: int) -> str:
    noun = "GPU" if count == 1 else "GPUs"
    text = f"{count} {noun}"
    if requirement.names:
        text += f" ({_either(requirement.names)})"
    if requirement.family is not None:
        text += f" of the {requirement.family.capitalize()} family"
    if requirement.min_compute_capability is not None:
        text += f" of compute capability {_version(requirement.min_compute_capability)} or newer"
    if requirement.min_memory_gb is not None:
        text += f" with at least {requirement.min_memory_gb} GB"
    return text


def _either(names: tuple[str, ...]) -> str:
    *others, last = (name.upper() for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / GB:.1f} GB"
