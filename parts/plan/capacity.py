"""Which profiles serve a number of users on a kind of GPU, and how many GPUs that takes.

A model, not a measurement: docs/plan.md tells how far it was off where it could be checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from parts.plan.constants import FittedConstants, calibration_of
from parts.plan.speed import Speed, Workload, speed
from parts.plan.work import PlannedEngine
from profiles.catalogue.engines import known_engines
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint, InvalidHardware, nearest
from profiles.hardware.gpus import BY_KEY, KnownGpu
from profiles.hardware.machine import Hardware
from profiles.hardware.written import parse_hardware
from profiles.selection.memory import KV_BYTES, WEIGHT_BYTES
from profiles.selection.selector import survey
from profiles.selection.verdicts import Candidate, Constraints, Selection

_BOARDS_OF_A_MACHINE = 8  # where only the kind of GPU is named and no fast link says how many
_ONE = re.compile(r"1\s*x.*|.*x\s*1", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Demand:
    """The load: a number of concurrent users, each with one request after another."""

    num_users: int
    isl: int
    osl: int
    ttft_s: float | None = None  # p95
    tokens_per_s: float | None = None  # for every user


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs a plan is made for."""

    speed: KnownGpu
    hardware: Hardware
    num_given: int | None  # None: as many as it takes


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One profile, as many engines of it as the users need."""

    profile: Profile
    deployment: PlannedEngine
    calibration: FittedConstants
    num_users: int  # of all engines, as asked
    max_users: int  # of one engine
    limited_by: str
    num_engines: int
    num_engines_given: int | None  # that the machine has room for
    served: Speed  # by one engine with its part of the users

    @property
    def num_gpus(self) -> int:
        return self.num_engines * self.profile.num_devices

    @property
    def is_runnable(self) -> bool:
        return self.profile.status != "planned"

    @property
    def is_enough(self) -> bool:
        return self.num_engines_given is None or self.num_engines <= self.num_engines_given

    @property
    def num_users_carried(self) -> int | None:
        """Users that the GPUs that were named carry; None where none were named."""
        given = self.num_engines_given
        return None if given is None else given * self.max_users

    @property
    def trust(self) -> str:
        if not self.is_runnable:
            return "none: nothing like it was run, and it is not supported yet"
        if self.profile.precision != "mxfp4":
            return "from figures of experts in MXFP4; with others nothing was measured"
        if self.profile.engine == "native" and self.profile.parallelism.tp > 2:
            return "from figures of two GPUs that share layers; more of them were not measured"
        num_users = min(self.max_users, ceil(self.num_users / self.num_engines))
        return self.calibration.trust_at(num_users)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Generated tokens of all users a second, by GPU."""
        return self.served.tokens_per_s / self.profile.num_devices


@dataclass(frozen=True, slots=True)
class UnfitProfile:
    """A profile that cannot serve what is asked, and why."""

    profile: Profile
    reason: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Speed of one engine and split from one user to as many as it holds."""

    label: str
    points: tuple[tuple[float, float], ...]  # tokens/s of a user, tokens/s of a GPU


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Every profile that fits the GPU, best first; and the others with their reasons."""

    demand: Demand
    machine: Machine
    options: tuple[PlanOption, ...]
    refusals: tuple[UnfitProfile, ...]
    curves: tuple[Curve, ...]

    @property
    def chosen(self) -> PlanOption | None:
        """What takes the fewest GPUs; None if the GPUs named carry the users in no way."""
        return next((each for each in self.options if each.is_runnable and each.is_enough), None)


def make_plan(
    profiles: Sequence[Profile],
    model: str,
    gpu: str,
    demand: Demand,
    engine: str | None = None,
    quantize: str | None = None,
) -> CapacityPlan:
    """Make the plan for `model` on GPUs such as 'h200x8', or 'gb200' for as many as it takes.

    `engine`: consider its profiles only. `quantize`: only those that round the weights to this.

    Raises InvalidConstraint for a model or a number that cannot be, InvalidHardware for GPUs.
    """
    _check(demand)
    machine = machine_of(gpu)
    length = demand.isl + demand.osl
    asked = Constraints(model=model, engine=engine, max_model_len=length, quantize=quantize)
    selection = survey(profiles, machine.hardware, asked)
    shared = _sharing_layers(profiles, machine.hardware, asked, selection)
    refusals = [
        UnfitProfile(rejection.profile, rejection.cause or rejection.reason)
        for rejection in selection.rejections
        if rejection.profile not in [candidate.profile for candidate in shared]
        and model in rejection.profile.model.names
        and engine in (None, rejection.profile.engine)
        and rejection.profile.is_rounded == (quantize is not None)
    ]
    options: list[PlanOption] = []
    candidates = [
        c
        for c in (*selection.compatible, *shared)
        if c.profile.replicas == 1 and c.profile.gpu and c.profile.gpu_layers is None
    ]
    for candidate in candidates:
        found = _option(candidate, machine, demand)
        if isinstance(found, PlanOption):
            options.append(found)
        else:
            refusals.append(found)
    options.sort(key=_rank)
    curves = _curves(candidates, machine, demand)
    return CapacityPlan(demand, machine, tuple(options), tuple(refusals), curves)


def _sharing_layers(
    profiles: Sequence[Profile], hardware: Hardware, asked: Constraints, found: Selection
) -> list[Candidate]:
    """Those that serve takes only where `-tp` asks for them, or in a later release, if they fit."""
    by_title = {profile.title: profile for profile in profiles}
    every = [
        profile.model_copy(update={"status": "untuned"}) if profile.status == "planned" else profile
        for profile in profiles
    ]
    several = {
        rejection.profile.parallelism.tp
        for rejection in found.rejections
        if rejection.is_off_by_default and rejection.profile.gpu
    } - {1}
    fitting = [
        replace(candidate, profile=by_title[candidate.profile.title])
        for tp in sorted(several)
        for candidate in survey(every, hardware, replace(asked, tags={"tp": str(tp)})).compatible
    ]
    return [candidate for candidate in fitting if candidate not in found.compatible]


def _rank(option: PlanOption) -> tuple[bool, int, bool, float, str]:
    """Fewest GPUs first; of those what was seen on such a GPU, then the fastest for a user. What
    is only planned comes last."""
    speed, is_checked = -option.served.tokens_per_s_per_user, option.calibration.is_checked
    return not option.is_runnable, option.num_gpus, not is_checked, speed, option.profile.title


def machine_of(text: str) -> Machine:
    """Read GPUs as `--hardware` does; without a count, a machine (or rack) full of them."""
    hardware = parse_hardware(text)
    keys = {gpu.key for gpu in hardware.gpus}
    if not keys:
        raise InvalidHardware(f"gpu '{text}' has no GPU; name one, such as h200 or gb200x72")
    if len(keys) > 1 or any(gpu.is_mig for gpu in hardware.gpus):
        raise InvalidHardware(f"gpu '{text}': a plan needs whole GPUs of one kind, e.g. h200x8")
    key = str(keys.pop())
    if key not in BY_KEY:
        hint = nearest(key, BY_KEY)
        known = ", ".join(BY_KEY)
        raise InvalidHardware(f"gpu '{text}': its bandwidth is not known{hint}; known: {known}")
    if len(hardware.gpus) > 1 or _ONE.fullmatch(text.strip()):
        return Machine(BY_KEY[key], hardware, len(hardware.gpus))
    return Machine(BY_KEY[key], _filled(hardware, key), None)


def _filled(hardware: Hardware, key: str) -> Hardware:
    """The machine with as many of its one GPU as the link joins, or a usual machine holds."""
    count = max(BY_KEY[key].num_linked, _BOARDS_OF_A_MACHINE)
    in_host = BY_KEY[key].per_host
    boards = (replace(hardware.gpus[0], index=i, host=i // in_host) for i in range(count))
    return replace(hardware, gpus=tuple(boards))


def _check(demand: Demand) -> None:
    for name, value in (("users", demand.num_users), ("isl", demand.isl), ("osl", demand.osl)):
        if value < 1:
            raise InvalidConstraint(f"{name} {value} must be at least 1")
    for name, wish in (("ttft", demand.ttft_s), ("tps", demand.tokens_per_s)):
        if wish is not None and not wish > 0:
            raise InvalidConstraint(f"{name} must be above 0; leave it out to ask for nothing")


def _option(candidate: Candidate, machine: Machine, demand: Demand) -> PlanOption | UnfitProfile:
    profile = candidate.profile
    calibration = calibration_of(profile.engine, machine.speed.architecture)
    if calibration is None:
        return UnfitProfile(profile, f"no speed of engine {profile.engine} is known")
    if profile.parallelism.pp > 1 and profile.parallelism.tp > 1:
        return UnfitProfile(profile, "pipeline stages of several GPUs each are not modelled")
    deployment = deployment_of(profile, machine.speed)

    def served(num_users: int) -> Speed:
        return speed(calibration.constants, deployment, Workload(num_users, demand.isl, demand.osl))

    room, limit = _room(candidate, deployment, demand)
    max_users = largest(lambda users: not _shortcoming(served(users), demand), room)
    if max_users == 0:
        return UnfitProfile(profile, f"one user alone gets {_shortcoming(served(1), demand)}")
    num_engines = ceil(demand.num_users / max_users)
    given = machine.num_given
    return PlanOption(
        profile,
        deployment,
        calibration,
        demand.num_users,
        max_users,
        limit if max_users == room else _limiting(served(max_users + 1), demand),
        num_engines,
        None if given is None else given // profile.num_devices,
        served(ceil(demand.num_users / num_engines)),
    )


def deployment_of(profile: Profile, gpu: KnownGpu) -> PlannedEngine:
    """Return how a profile spreads its model over GPUs of this kind."""
    dense, packed = WEIGHT_BYTES[profile.precision]
    return PlannedEngine(
        profile.model.shape,
        gpu,
        profile.parallelism,
        dense_bytes=known_engines()[profile.engine].dense_bytes or dense,
        packed_bytes=packed,
        kv_bytes=KV_BYTES[profile.kv_dtype],
        step_tokens=profile.limits.max_num_batched_tokens,
    )


def _room(candidate: Candidate, deployment: PlannedEngine, demand: Demand) -> tuple[int, str]:
    """How many sequences of full length one engine holds, and what limits them."""
    need, batch = candidate.placement.need, candidate.placement.limits.max_num_seqs
    length = demand.isl + demand.osl
    each = need.kv_bytes_per_sequence + length * need.kv_bytes_per_token
    in_memory = (candidate.placement.usable_bytes - need.fixed_bytes) // each
    if in_memory < batch:
        return in_memory * deployment.num_ranks, "KV cache memory"
    return batch * deployment.num_ranks, "batch size"


def _shortcoming(given: Speed, demand: Demand) -> str:
    """The unmet part of the demand, in words; empty if it is met."""
    if demand.tokens_per_s is not None and given.tokens_per_s_per_user < demand.tokens_per_s:
        return f"{given.tokens_per_s_per_user:,.0f} tok/s instead of {demand.tokens_per_s:,.0f}"
    if demand.ttft_s is not None and given.ttft_tail_s > demand.ttft_s:
        late = f"{given.ttft_tail_s * 1e3:,.0f} ms"
        return f"the first token after {late} instead of {demand.ttft_s * 1e3:,.0f} ms"
    return ""


def _limiting(beyond: Speed, demand: Demand) -> str:
    is_slow = demand.tokens_per_s is not None and beyond.tokens_per_s_per_user < demand.tokens_per_s
    return "--tps" if is_slow else "--ttft"


def largest(holds: Callable[[int], bool], most: int) -> int:
    """Find the largest number up to `most` for which `holds`, which fails from some number on."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _curves(candidates: list[Candidate], machine: Machine, demand: Demand) -> tuple[Curve, ...]:
    """One for each engine and split: profiles that differ in their limits lie on one."""
    longest: dict[str, tuple[int, Candidate]] = {}
    for candidate in candidates:
        deployment = deployment_of(candidate.profile, machine.speed)
        room, _ = _room(candidate, deployment, demand)
        name = _curve_label(candidate.profile)
        if room > longest.get(name, (0, candidate))[0]:
            longest[name] = room, candidate
    return tuple(
        Curve(name, points)
        for name, (room, candidate) in sorted(longest.items())
        if (points := _points(candidate.profile, room, machine, demand))
    )


def _curve_label(profile: Profile) -> str:
    split = profile.parallelism
    spread = f"PP {split.pp}" if split.pp > 1 else f"TP {split.tp}"
    spread = f"DEP {split.tp}" if split.attention_dp else spread
    return f"{profile.engine} {spread}, {profile.kv_dtype} K/V"


def _points(
    profile: Profile, room: int, machine: Machine, demand: Demand
) -> tuple[tuple[float, float], ...]:
    calibration = calibration_of(profile.engine, machine.speed.architecture)
    if calibration is None or min(profile.parallelism.pp, profile.parallelism.tp) > 1:
        return ()
    deployment = deployment_of(profile, machine.speed)
    counts = sorted({*(2**i for i in range(room.bit_length())), room})
    speeds = [
        speed(calibration.constants, deployment, Workload(users, demand.isl, demand.osl))
        for users in counts
    ]
    num_gpus = profile.num_devices
    return tuple((each.tokens_per_s_per_user, each.tokens_per_s / num_gpus) for each in speeds)
