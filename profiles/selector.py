"""The selector: which profile serves best here, and why not each of the others.

Pure: the same profiles, hardware and constraints always give the same answer. Each
profile ends in exactly one class:

    RUNNABLE        it can start now
    LOW_MEMORY      it would start with a shorter context, which is named
    NOT_INSTALLED   the hardware fits, the engine is missing
    INCOMPATIBLE    the hardware does not fit, or the profile is planned only
    NOT_ASKED       a constraint excludes it

Runnable profiles are ranked by, in this order:

 1. the larger model, when none is asked for: who has the hardware for it wants it;
 2. the goal asked for, 'balanced' when none is. A goal is a wish, not a filter: next
    best to an extreme is balanced, and next best to balanced is throughput, because a
    latency profile keeps its batch so small that a busy service would queue;
 3. tuned on this hardware by this project, then published by the engine's makers, then
    untuned;
 4. fewer bits per weight: less memory traffic, and gpt-oss is published in MXFP4;
 5. more GPUs for latency or balance, fewer for throughput (more copies can run);
 6. made for this very GPU, then for its generation, then generic;
 7. tensorrt_llm, then vllm, then native: the order of NVIDIA's own images;
 8. the name, so that the order is total.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from profiles.errors import InvalidConstraint, NoCompatibleProfile, nearest
from profiles.machine import Hardware
from profiles.memory import num_parameters
from profiles.models import Goal, Profile
from profiles.placement import Shortage, place
from profiles.remedies import refusal
from profiles.verdicts import Candidate, Constraints, Fit, Rejection, Selection


def select(profiles: Iterable[Profile], hardware: Hardware, constraints: Constraints) -> Selection:
    """Choose the best profile; it is the selection's `chosen`.

    Raises NoCompatibleProfile, which starts with the remedy, when nothing can run, and
    InvalidConstraint when a constraint names what no profile has.
    """
    profiles = tuple(profiles)
    selection = survey(profiles, hardware, constraints)
    if not selection.compatible:
        here = Constraints(installed=constraints.installed, cpu_only=constraints.cpu_only)
        unasked = survey(profiles, hardware, here)
        reasons = {r.profile.title: r.reason for r in selection.rejections}
        raise NoCompatibleProfile(refusal(selection, unasked, constraints), reasons)
    return selection


def survey(profiles: Iterable[Profile], hardware: Hardware, constraints: Constraints) -> Selection:
    """Classify and rank every profile; unlike select(), nothing runnable is an answer too."""
    profiles = tuple(profiles)
    check_constraints(profiles, constraints)
    verdicts = [_classify(profile, hardware, constraints) for profile in profiles]
    candidates = [verdict for verdict in verdicts if isinstance(verdict, Candidate)]
    ranked = tuple(sorted(candidates, key=lambda c: _rank(c.profile, constraints)))
    rejections = tuple(verdict for verdict in verdicts if isinstance(verdict, Rejection))
    return Selection(ranked, rejections, _reason(ranked, len(profiles), hardware, constraints))


def check_constraints(profiles: tuple[Profile, ...], constraints: Constraints) -> None:
    """Raise InvalidConstraint if a constraint names what no profile has."""
    _check_known("model", constraints.model, {n for p in profiles for n in p.model.names})
    _check_known("engine", constraints.engine, {p.engine for p in profiles})
    if constraints.profile is not None:  # ids are hashed, so only if they are needed
        _check_known("profile", constraints.profile, {n for p in profiles for n in _names(p)})
    known_tags = {tag for profile in profiles for tag in profile.tags}
    for tag in constraints.tags:
        _check_known("tag", tag, known_tags)
    if constraints.num_replicas is not None and constraints.num_replicas < 1:
        raise InvalidConstraint(f"replicas {constraints.num_replicas} must be at least 1")
    if constraints.max_model_len is not None and constraints.max_model_len < 1:
        raise InvalidConstraint(f"max_model_len {constraints.max_model_len} must be at least 1")


def _check_known(kind: str, value: str | None, known: set[str]) -> None:
    if value is None or value in known:
        return
    listed = sorted(name for name in known if len(name) < 64)
    shown = ", ".join(listed) if len(listed) <= 20 else "run 'harmonium profiles' to list them"
    hint = nearest(value, listed)
    raise InvalidConstraint(f"{kind} '{value}' is not in the catalogue{hint}; known: {shown}")


def _names(profile: Profile) -> tuple[str, ...]:
    """Return all that may select a profile: NIM 2 leaves the GPU and the goal out."""
    split = f"tp{profile.parallelism.tp}-pp{profile.parallelism.pp}"
    nim = f"{profile.engine}-{profile.precision}-{split}"
    return (profile.id, profile.name, profile.title, nim, "default")


def _classify(
    profile: Profile, hardware: Hardware, constraints: Constraints
) -> Candidate | Rejection:
    if reason := _not_asked(profile, constraints):
        return Rejection(profile, Fit.NOT_ASKED, reason)
    if profile.status == "planned":
        reason = f"is planned only: {profile.source}"
        return Rejection(profile, Fit.INCOMPATIBLE, reason)
    max_model_len = constraints.max_model_len or profile.limits.max_model_len
    num_replicas = constraints.num_replicas or profile.replicas
    placed = place(profile, hardware, max_model_len, num_replicas)
    missing = _missing_engine(profile, constraints)
    if isinstance(placed, Shortage):
        fit = Fit.INCOMPATIBLE if placed.max_model_len is None else Fit.LOW_MEMORY
        reason = placed.reason
        if missing and fit is Fit.LOW_MEMORY:
            reason = f"{reason}; {missing}"
        return Rejection(profile, fit, reason, placed.max_model_len, missing, placed.cause)
    if missing:
        return Rejection(profile, Fit.NOT_INSTALLED, missing, missing_engine=missing)
    return Candidate(profile, placed, max_model_len)


def _not_asked(profile: Profile, constraints: Constraints) -> str:
    asked, limit = constraints, profile.limits.max_model_len
    if asked.model is not None and asked.model not in profile.model.names:
        return f"serves {profile.model.name}, but model {asked.model} was asked for"
    if asked.engine not in (None, profile.engine):
        return f"uses engine {profile.engine}, but engine {asked.engine} was asked for"
    if asked.profile is not None and asked.profile not in _names(profile):
        return f"is not the profile '{asked.profile}' that was asked for"
    for tag, value in asked.tags.items():
        if profile.tags[tag] != value:
            return f"has {tag}={profile.tags[tag]}, but {tag}={value} was asked for"
    if asked.max_model_len is not None and asked.max_model_len > limit:
        return f"serves at most {limit:,} tokens, but {asked.max_model_len:,} were asked for"
    return ""


def _missing_engine(profile: Profile, constraints: Constraints) -> str:
    if constraints.installed is None:
        return ""
    reason = constraints.installed.get(profile.engine, "not installed: there is no adapter for it")
    if reason is None and profile.gpu is not None:
        reason = constraints.cpu_only.get(profile.engine)
    return "" if reason is None else f"engine {profile.engine} is {reason}"


# For each goal asked, the goals a profile may have, best first.
_GOALS: Mapping[Goal, tuple[Goal, ...]] = {
    "latency": ("latency", "balanced", "throughput"),
    "balanced": ("balanced", "throughput", "latency"),
    "throughput": ("throughput", "balanced", "latency"),
}
_STATUSES = ("tuned", "published", "untuned", "planned")
_ENGINES = ("tensorrt_llm", "vllm", "native")
_BITS = {"mxfp4": 4, "bf16": 16, "fp32": 32}


def _specificity(profile: Profile) -> int:
    """Return 0 for a named GPU, 1 for a generation, 2 for any; a CPU is all it can be."""
    if profile.gpu is None or profile.gpu.names:
        return 0
    return 1 if profile.gpu.family else 2


def _goal_distance(profile: Profile, goal: Goal | None) -> int:
    return _GOALS[goal or "balanced"].index(profile.goal)


def _device_order(profile: Profile) -> int:
    return profile.num_devices if profile.goal == "throughput" else -profile.num_devices


# The ranking, with the words that explain a choice made at each step.
_CRITERIA: tuple[tuple[str, Callable[[Profile, Constraints], int]], ...] = (
    ("it serves the larger model", lambda p, c: -num_parameters(p.model.shape)),
    ("it comes closer to the goal ({goal})", lambda p, c: _goal_distance(p, c.goal)),
    ("its values are better proven", lambda p, c: _STATUSES.index(p.status)),
    ("it has fewer bits per weight", lambda p, c: _BITS[p.precision]),
    ("it uses the better number of GPUs for its goal", lambda p, c: _device_order(p)),
    ("it is made more closely for this hardware", lambda p, c: _specificity(p)),
    ("its engine comes first", lambda p, c: _ENGINES.index(p.engine)),
)


def _rank(profile: Profile, constraints: Constraints) -> tuple[tuple[int, ...], str]:
    return tuple(key(profile, constraints) for _, key in _CRITERIA), profile.title


def _reason(
    ranked: tuple[Candidate, ...], num_profiles: int, hardware: Hardware, constraints: Constraints
) -> str:
    if not ranked:
        return f"None of the {num_profiles} profiles can run on this machine ({hardware.summary})."
    if len(ranked) == 1:
        return f"It is the only one of {num_profiles} profiles that can run on {hardware.summary}."
    first, second = ranked[0].profile, ranked[1].profile
    because = next(
        (words for words, key in _CRITERIA if key(first, constraints) != key(second, constraints)),
        "its name comes first",
    )
    return (
        f"{len(ranked)} of {num_profiles} profiles can run on {hardware.summary}; "
        f"this one comes before {second.title} because "
        f"{because.format(goal=constraints.goal or 'balanced')}."
    )
