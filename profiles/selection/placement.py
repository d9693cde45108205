"""Where on a machine a profile fits, or in one sentence why it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

from profiles.catalogue.models import GpuRequirement, Limits, Profile
from profiles.hardware.machine import GB, Gpu, Hardware, describe_gpus
from profiles.selection.memory import MemoryNeed, memory_need

MIN_CONTEXT = 8192  # tokens; a reasoning model given less ends in the middle of its thoughts

# The native engine's limits on a GPU, as parts of its profile's: the whole context has precedence
# over more
# sequences and larger chunks, whose work space takes memory.
_SHARES = (1, 2, 4)

# Of memory that the GPU shares with the machine: the system and the server need the rest.
UNIFIED_FRACTION = 0.75

_Team = tuple[Gpu, ...]  # the GPUs of one engine


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices a profile would use; no GPU at all for a CPU profile."""

    gpus: tuple[Gpu, ...]
    need: MemoryNeed
    usable_bytes: int  # of the device with the least
    limits: Limits  # the profile's, or what the memory holds of them
    num_replicas: int = 1  # engines that share the devices out
    num_alike: int = 0  # GPUs of this kind in the machine, whether used or not

    @property
    def max_model_len(self) -> int:
        return self.limits.max_model_len

    @property
    def kv_tokens(self) -> int:
        """How many tokens of context the devices of one engine hold, in one sequence."""
        return self.need.num_tokens(self.usable_bytes)

    def memory_fraction(self, profile: Profile) -> float:
        """The share of a device's memory that an engine may take."""
        return fraction_of(self.gpus[0], profile) if self.gpus else profile.memory_fraction

    @property
    def by_replica(self) -> tuple[tuple[Gpu, ...], ...]:
        each = len(self.gpus) // self.num_replicas
        return tuple(self.gpus[i * each : (i + 1) * each] for i in range(self.num_replicas))

    @property
    def crosses_pcie(self) -> bool:
        """Whether the GPUs of one engine are more than NVLink joins."""
        team = self.by_replica[0]
        return len(team) > 1 and len(team) > min(gpu.nvlink for gpu in team)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a profile does not fit, and the context length with which it would."""

    reason: str
    max_model_len: int | None = None
    cause: str = ""  # why no GPU will do, in words that fit every profile


def place(
    profile: Profile,
    hardware: Hardware,
    max_model_len: int | None = None,
    num_replicas: int | None = None,
) -> Placement | Shortage:
    """Put `profile` on the devices with the most free memory, neighbours or not.

    Without `max_model_len` the context is as long as the profile's, or as fits if that is
    MIN_CONTEXT at least; without `num_replicas` there are as many engines as the machine holds.
    """
    at_least = num_replicas or profile.replicas
    if profile.gpu is None:
        usable = int(
            min(hardware.cpu.free_bytes, profile.memory_fraction * hardware.cpu.total_bytes)
        )
        return _fit(profile, (), usable // at_least, max_model_len, at_least)
    kinds = [kind for kind in _teams(profile, hardware) if len(kind) >= at_least]
    if not kinds:
        num_gpus = at_least * profile.num_devices
        return Shortage(_wrong_gpus(profile, hardware, num_gpus), cause=_no_gpus_for_it(hardware))
    if (host_bytes := memory_need(profile).host_bytes) > hardware.cpu.free_bytes:
        return Shortage(
            f"needs {_gb(host_bytes)} of the machine's memory beside the GPU, found "
            f"{_gb(hardware.cpu.free_bytes)}"
        )
    best = max(kinds, key=lambda kind: _usable(kind[at_least - 1], profile))
    placed = _on_teams(profile, best[:at_least], max_model_len)
    if num_replicas is None and isinstance(placed, Placement) and not host_bytes:
        needed = placed.need.total_bytes(placed.max_model_len)
        roomy = [team for team in best if _usable(team, profile) >= needed]
        placed = _on_teams(profile, roomy, placed.max_model_len)
    if isinstance(placed, Shortage):
        return placed
    alike = [gpu for gpu in hardware.gpus if gpu.name == placed.gpus[0].name]
    return replace(placed, num_alike=len(alike))


def _on_teams(
    profile: Profile, teams: list[_Team], max_model_len: int | None
) -> Placement | Shortage:
    gpus = tuple(gpu for team in sorted(teams, key=_indices) for gpu in team)
    usable = min(_usable(team, profile) for team in teams)
    return _fit(profile, gpus, usable, max_model_len, len(teams))


def _indices(team: _Team) -> list[int]:
    return [gpu.index for gpu in team]


def is_match(gpu: Gpu, requirement: GpuRequirement) -> bool:
    if requirement.names and gpu.key not in requirement.names:
        return False
    if requirement.family is not None and gpu.family != requirement.family:
        return False
    if gpu.total_bytes < (requirement.min_memory_gb or 0) * GB:
        return False
    lowest, beyond = requirement.min_compute_capability, requirement.below_compute_capability
    if beyond is not None and gpu.compute_capability >= beyond:
        return False
    return lowest is None or gpu.compute_capability >= lowest


def _teams(profile: Profile, hardware: Hardware) -> list[list[_Team]]:
    """The teams that each kind of GPU can form, most free memory first.

    A team is of GPUs that are alike and in one host; slices of a GPU cannot talk to each other.
    """
    assert profile.gpu is not None
    size = profile.num_devices
    matching = [gpu for gpu in hardware.gpus if is_match(gpu, profile.gpu)]
    matching.sort(key=lambda gpu: (gpu.name, gpu.is_mig, gpu.host, -gpu.free_bytes, gpu.index))
    kinds: list[list[_Team]] = []
    for _, alike in groupby(matching, key=lambda gpu: (gpu.name, gpu.is_mig)):
        teams: list[_Team] = []
        for _, in_host in groupby(alike, key=lambda gpu: gpu.host):
            gpus = tuple(in_host)
            if size == 1 or not gpus[0].is_mig:
                teams += [gpus[i : i + size] for i in range(0, len(gpus) - size + 1, size)]
        teams.sort(key=lambda team: -_usable(team, profile))
        kinds.append(teams)
    return kinds


def _usable(team: _Team, profile: Profile) -> int:
    fraction = fraction_of(team[0], profile)
    return min(int(min(gpu.free_bytes, fraction * gpu.total_bytes)) for gpu in team)


def fraction_of(gpu: Gpu, profile: Profile) -> float:
    """The share of a GPU's memory that a profile's engine may take there."""
    most = UNIFIED_FRACTION if gpu.is_unified else 1.0
    return min(profile.memory_fraction, most)


def _fit(
    profile: Profile,
    gpus: tuple[Gpu, ...],
    usable: int,
    max_model_len: int | None,
    num_replicas: int,
) -> Placement | Shortage:
    longest = max_model_len or profile.limits.max_model_len
    for limits in _possible_limits(profile, longest):
        need = memory_need(profile.model_copy(update={"limits": limits}))
        if need.total_bytes(longest) <= usable:
            return Placement(gpus, need, usable, limits, num_replicas)
    fitting = need.max_model_len(usable)
    if max_model_len is None and fitting >= MIN_CONTEXT:
        limits = limits.model_copy(update={"max_model_len": fitting})
        return Placement(gpus, need, usable, limits, num_replicas)
    each = " on each GPU" if len(gpus) > 1 else ""
    kv_bytes = need.total_bytes(longest) - need.fixed_bytes
    head = f", {_gb(need.draft_bytes)} of them the draft head's" if need.draft_bytes else ""
    reason = (
        f"needs {_gb(need.total_bytes(longest))}{each} ({_gb(need.weights_bytes)} weights{head}, "
        f"{_gb(need.workspace_bytes)} workspace, {_gb(kv_bytes)} for one sequence of "
        f"{longest:,} tokens), found {_gb(usable)} usable {_on(gpus)}"
    )
    if fitting == 0:
        return Shortage(reason)
    return Shortage(f"{reason}; a context of {fitting:,} tokens would fit", fitting)


def _possible_limits(profile: Profile, longest: int) -> list[Limits]:
    """The profile's limits with a context of `longest`, the largest first."""
    given = profile.limits
    shares = _SHARES if profile.engine == "native" and profile.gpu is not None else (1,)
    return [
        Limits(
            max_model_len=longest,
            max_num_seqs=-(-given.max_num_seqs // share),
            max_num_batched_tokens=-(-given.max_num_batched_tokens // share),
        )
        for share in shares
    ]


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
    if requirement.below_compute_capability is not None:
        text += f" of compute capability below {_version(requirement.below_compute_capability)}"
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
