"""What an operator should know of a choice: rivals, idle GPUs, PCIe, a shorter context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from profiles.catalogue.models import Profile
from profiles.hardware.machine import GB, Gpu, Hardware, describe_gpus
from profiles.selection.memory import memory_need
from profiles.selection.placement import Placement
from profiles.selection.ranking import rank, why_first
from profiles.selection.verdicts import Candidate, Constraints, Fit, Rejection, Rival


def rivals_of(ranked: Sequence[Candidate], constraints: Constraints) -> tuple[Rival, ...]:
    """Find the best candidates with another engine, another number of GPUs and another model.

    Beside a profile for a GPU those for the CPU count only where there are no others.
    """
    first, *others = ranked
    alike = [c for c in others if (c.profile.gpu is None) == (first.profile.gpu is None)]
    found = _interesting(first, alike) or _interesting(first, others) or others[:1]
    return tuple(Rival(c.profile, why_first(first, c, constraints)) for c in found)


def _interesting(first: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
    chosen = first.profile
    same_model = [c for c in others if c.profile.model.name == chosen.model.name]
    split = [c for c in same_model if c.profile.num_devices != chosen.num_devices]
    kinds = (
        (c for c in same_model if c.profile.engine != chosen.engine),
        (c for c in split if c.profile.engine == chosen.engine),
        (c for c in others if c.profile.model.name != chosen.model.name),
    )
    best = (next(candidates, None) for candidates in kinds)
    return list({c.profile.title: c for c in best if c is not None}.values())


def notes_on(
    ranked: Sequence[Candidate],
    rejections: Sequence[Rejection],
    hardware: Hardware,
    constraints: Constraints,
) -> tuple[str, ...]:
    chosen = ranked[0]
    return (
        *_not_installed(chosen, rejections, constraints),
        *_goal(chosen, constraints),
        *_context(chosen),
        *_hosts(chosen.placement),
        *_pcie(chosen),
        *_pipeline(chosen),
        *_not_run(chosen),
        *(_idle(chosen, hardware, constraints) if chosen.placement.gpus else ()),
        *(() if chosen.placement.gpus else _all_idle(rejections, hardware)),
    )


def _not_installed(
    chosen: Candidate, rejections: Iterable[Rejection], constraints: Constraints
) -> Iterator[str]:
    """The best profile that would be preferred if its engine were installed."""
    rejections = tuple(rejections)
    missing = [r for r in rejections if r.candidate is not None]
    place = rank(chosen, constraints)
    ahead = [(rank(r.candidate, constraints), r) for r in missing if r.candidate is not None]
    best = min((pair for pair in ahead if pair[0] < place), key=lambda p: p[0], default=None)
    if best is None or best[1].candidate is None:
        yield from _no_room(chosen, rejections)
        return
    profile, missing_engine = best[1].profile, best[1].missing_engine
    if chosen.profile.model.is_demonstration and not profile.model.is_demonstration:
        size, unit = f"{_num_bytes(profile) / GB:.1f} GB", "GPU" if profile.gpu else "CPU"
        way = missing_engine.partition("not installed: ")[2] or missing_engine
        yield f"For {profile.model.name} on this {unit} ({size}): {way}."
        return
    because = why_first(best[1].candidate, chosen, constraints)
    yield f"{profile.title} would be preferred ({because}), but {missing_engine}."


def _no_room(chosen: Candidate, rejections: Iterable[Rejection]) -> Iterator[str]:
    """Beside the demonstration model: what the smallest real one would take."""
    unfit = [
        (memory_need(r.profile).fixed_bytes, r.profile.model.name)
        for r in rejections
        if r.profile.gpu is None
        and r.fit in (Fit.INCOMPATIBLE, Fit.LOW_MEMORY)
        and not (r.cause or r.profile.model.is_demonstration)
    ]
    if chosen.profile.model.is_demonstration and unfit:
        need, model = min(unfit)
        yield (
            f"A real model needs more memory than is free: {model} takes {need / GB:.1f} GB, and "
            "more for its context."
        )


def _goal(chosen: Candidate, constraints: Constraints) -> Iterator[str]:
    wanted, found = constraints.goal, chosen.profile.goal
    if wanted not in (None, found):
        yield (
            f"No profile of {chosen.profile.model.name} that can run here is tuned for {wanted}; "
            f"this one is tuned for {'balance' if found == 'balanced' else found}."
        )


def _context(chosen: Candidate) -> Iterator[str]:
    longest = chosen.profile.limits.max_model_len
    if chosen.max_model_len < longest and chosen.placement.max_model_len == chosen.max_model_len:
        room = chosen.placement.need.max_model_len(chosen.placement.usable_bytes)
        if room < longest:
            yield (
                f"The context is {chosen.max_model_len:,} of {longest:,} tokens; more does not "
                f"fit into the free memory."
            )


def _hosts(placement: Placement) -> Iterator[str]:
    hosts = Counter(gpu.host for gpu in placement.gpus)
    if len(hosts) > 1:
        each = max(hosts.values())
        engines = placement.num_replicas * each // len(placement.gpus)
        engine = "engine" if engines == 1 else "engines"
        yield (
            f"{len(placement.gpus)} GPUs are {len(hosts)} hosts with {each} each: run one server "
            f"per host, with {engines} {engine}, behind a load balancer."
        )


def _pcie(chosen: Candidate) -> Iterator[str]:
    if not chosen.placement.crosses_pcie or chosen.profile.parallelism.tp == 1:
        return
    shape, count = chosen.profile.model.shape, chosen.profile.num_devices
    yield (
        f"The {count} GPUs of an engine have no NVLink between them: each token waits for "
        f"{2 * shape.num_hidden_layers} exchanges over PCIe, so expect far less than the GPUs' "
        "memory would give."
    )


def _pipeline(chosen: Candidate) -> Iterator[str]:
    if (count := chosen.profile.parallelism.pp) > 1:
        yield (
            f"The {count} GPUs of an engine compute each token one after another: they hold the "
            "model together, and are no faster than one of them would be."
        )


def _not_run(chosen: Candidate) -> Iterator[str]:
    if chosen.profile.status == "compiled":
        yield (
            f"This profile is compiled for {chosen.placement.gpus[0].name} and checked against its "
            "limits; this project has not run it there."
        )


def _idle(chosen: Candidate, hardware: Hardware, constraints: Constraints) -> Iterator[str]:
    placement = chosen.placement
    idle = tuple(gpu for gpu in hardware.gpus if gpu not in placement.gpus)
    for gpus, why in _reasons(idle, chosen, constraints):
        verb = "stays" if len(gpus) == 1 else "stay"
        which = numbers(gpu.index for gpu in gpus)
        yield f"{describe_gpus(gpus)} (GPU {which}) {verb} idle: {why}."


def _reasons(
    idle: tuple[Gpu, ...], chosen: Candidate, constraints: Constraints
) -> Iterator[tuple[tuple[Gpu, ...], str]]:
    placement, size = chosen.placement, chosen.profile.num_devices
    name = placement.gpus[0].name
    needed = placement.need.total_bytes(chosen.max_model_len)
    others = tuple(gpu for gpu in idle if gpu.name != name)
    alike = tuple(gpu for gpu in idle if gpu.name == name)
    full = tuple(gpu for gpu in alike if gpu.free_bytes < needed)
    free = tuple(gpu for gpu in alike if gpu.free_bytes >= needed)
    if others:
        yield others, f"one server runs on GPUs of one kind, here {name}"
    if full:
        yield (
            full,
            f"too little of their memory is free, where an engine needs {needed / GB:.1f} GB",
        )
    if free and constraints.num_replicas is not None:
        yield free, f"NIM_REPLICAS is {constraints.num_replicas}; unset it to use all that fit"
    elif free and placement.need.host_bytes:
        yield free, "an engine of this profile needs the CPU, too"
    elif free:
        yield free, f"an engine of this profile takes {size}"


def _all_idle(rejections: Sequence[Rejection], hardware: Hardware) -> Iterator[str]:
    """Name the profile nearest to running on the GPUs, if only memory is missing."""
    too_large = [
        r
        for r in rejections
        if r.profile.gpu
        and r.fit in (Fit.INCOMPATIBLE, Fit.LOW_MEMORY)
        and not r.cause
        and r.profile.status != "planned"
    ]
    nearest = min(too_large, key=lambda r: memory_need(r.profile).fixed_bytes, default=None)
    is_missing = any(r.candidate is not None and r.profile.gpu for r in rejections)
    if hardware.gpus and nearest is not None and not is_missing:
        yield (
            f"{hardware.summary} serves nothing: {nearest.profile.title}, which takes the least, "
            f"{nearest.reason}."
        )


def where(placement: Placement) -> str:
    """Say which devices are used: 'on GPUs 0-7: 8 engines, each on a GPU of its own'."""
    if not placement.gpus:
        return "on the CPU"
    count, engines = len(placement.gpus), placement.num_replicas
    indices = {gpu.index for gpu in placement.gpus}
    which, unit = f"GPU{'s' if len(indices) > 1 else ''} {numbers(indices)}", "a GPU"
    if placement.gpus[0].is_mig:
        which, unit = f"{'a slice' if count == 1 else f'{count} slices'} of {which}", "a slice"
    if engines == 1:
        return f"on {which}" if count == 1 else f"on {which}: one engine on all"
    own = unit if count == engines else f"{count // engines}"
    return f"on {which}: {engines} engines side by side, each on {own} of its own"


def numbers(indices: Iterable[int]) -> str:
    """Write numbers in few words: '0-3, 6'."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def smaller_model(ranked: Sequence[Candidate], constraints: Constraints) -> str:
    """Name the smaller model if the large one, a large download, was not named."""
    chosen = ranked[0].profile
    is_named = constraints.model or constraints.profile not in (None, "default")
    others = (c.profile for c in ranked if c.profile.model.name != chosen.model.name)
    smaller = next((p for p in others if 0 < _num_bytes(p) < _num_bytes(chosen)), None)
    if is_named or smaller is None:
        return ""
    return (
        f" No model was named, so the larger was taken: {chosen.model.name}, "
        f"{_num_bytes(chosen) / GB:.1f} GB of files. NIM_MODEL_NAME={smaller.model.name} is "
        f"{_num_bytes(smaller) / GB:.1f} GB, faster, and runs here too."
    )


def _num_bytes(profile: Profile) -> int:
    return sum(file.size_bytes for file in profile.artifacts.files) if profile.artifacts else 0
