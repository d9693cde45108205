"""The selector: which profile serves best here, and why not each of the others.

It is a pure function: the same profiles, hardware and constraints give the same answer.
Each profile is put into exactly one class:

    RUNNABLE        it can start now
        LOW_MEMORY      it would start with a shorter context, whose length is reported
    NOT_INSTALLED   the hardware fits, but the engine is missing
    INCOMPATIBLE    the hardware does not fit, or the profile is not supported yet
    NOT_ASKED       a constraint excludes it, or it serves the demonstration model, the
                    machine has a GPU, and the model was not named, or it runs on the
                    CPU of a machine whose GPUs hold fewer engines than requested

If no context length is requested, a profile whose full context does not fit is runnable
with the length that fits, if that is at least 8,192 tokens. It gets as many GPUs as fit
engines of it.

Runnable profiles are ranked by these criteria, in this order:

 1. any other model before the demonstration model;
 2. a GPU before a GPU with the CPU, and both before the CPU;
 3. at least three quarters of the context: with less, a smaller model serves better; with
    less than an eighth, one with a longer context; then more layers on the GPU;
 4. engines whose GPUs do not wait for each other at each token, over PCIe or in a pipeline;
 5. on GPUs the larger model, on a CPU the smaller;
  6. the goal ('balanced' if none is requested). A goal does not exclude profiles: balanced
    is second best to the extremes, and throughput is second best to balanced, because a
    latency profile's small batch makes requests queue;
 7. room for K/V of 256 tokens for each sequence of the profile's batch;
 8. the faster GPUs, if a machine has several kinds: by memory bandwidth of one GPU for
    latency, of all GPUs of a kind otherwise;
 9. the fastest engine on this GPU for this goal by measured or published figures
    (profiles/data/engine_order.yaml); an engine this project has not run comes last;
10. room for K/V of 262,144 tokens in each engine, unless the goal is latency;
11. for latency more GPUs per token; otherwise as few GPUs per engine as hold the model,
    because several engines give more tokens than one engine on all GPUs;
12. less of the machine left idle;
13. tuned on this GPU by this project, then published for it, then untuned, then only
    compiled for it;
14. fewer bits per weight, because gpt-oss is published in MXFP4;
15. made for this GPU, then for its generation, then generic;
16. the name, so that the order is total.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint, NoCompatibleProfile, nearest
from profiles.hardware.machine import Hardware
from profiles.selection.notes import notes_on, rivals_of, smaller_model
from profiles.selection.placement import Shortage, place
from profiles.selection.ranking import rank
from profiles.selection.remedies import num_engines, refusal, remedy_for
from profiles.selection.rounding import rounding_notes
from profiles.selection.verdicts import Candidate, Constraints, Fit, Rejection, Rival, Selection

# Of gpt-oss's shape; without an entry, which would need the checksums of its files.
_SAFEGUARD: Final = re.compile(r"(?:openai/)?gpt-oss-safeguard[-:](20b|120b)")


def select(profiles: Iterable[Profile], hardware: Hardware, constraints: Constraints) -> Selection:
    """Choose the best profile; it is the selection's `chosen`.

    Raises NoCompatibleProfile, which starts with the remedy, when nothing can run, and
    InvalidConstraint when a constraint names what no profile has.
    """
    selection = survey(profiles, hardware, constraints)
    if not selection.compatible:
        reasons = {r.profile.title: r.reason for r in selection.rejections}
        raise NoCompatibleProfile(refusal(selection), reasons)
    return selection


def survey(profiles: Iterable[Profile], hardware: Hardware, constraints: Constraints) -> Selection:
    """Classify and rank every profile; unlike select(), nothing runnable is an answer too.

    The selection then has the remedy.
    """
    profiles = tuple(profiles)
    check_constraints(profiles, constraints)
    selection = _survey(profiles, hardware, constraints)

    def ask(fewer: Constraints) -> Selection:
        return _survey(profiles, hardware, fewer)

    if selection.compatible:
        return replace(
            selection, notes=(*rounding_notes(selection, ask, constraints), *selection.notes)
        )
    return replace(selection, remedy=remedy_for(selection, ask, hardware, constraints))


def asked_for(profiles: Iterable[Profile], constraints: Constraints) -> list[Profile]:
    """The profiles that the constraints leave, on whatever machine."""
    return [
        profile
        for profile in profiles
        if profile.status != "planned"
        and not (_excluded(profile, constraints) or _off_by_default(profile, constraints))
    ]


def _survey(
    profiles: tuple[Profile, ...], hardware: Hardware, constraints: Constraints
) -> Selection:
    verdicts = [_classify(profile, hardware, constraints) for profile in profiles]
    if reason := _fewer_on_gpus(verdicts, profiles, hardware, constraints):
        verdicts = [_off_cpu(verdict, reason) for verdict in verdicts]
    candidates = [verdict for verdict in verdicts if isinstance(verdict, Candidate)]
    ranked = tuple(sorted(candidates, key=lambda c: rank(c, constraints)))
    rejections = tuple(verdict for verdict in verdicts if isinstance(verdict, Rejection))
    rivals = rivals_of(ranked, constraints) if ranked else ()
    notes = notes_on(ranked, rejections, hardware, constraints) if ranked else ()
    reason = _reason(ranked, len(profiles), hardware, rivals)
    if ranked:
        reason += smaller_model(ranked, constraints)
    return Selection(ranked, rejections, reason, rivals, notes)


def _fewer_on_gpus(
    verdicts: Iterable[Candidate | Rejection],
    profiles: tuple[Profile, ...],
    hardware: Hardware,
    constraints: Constraints,
) -> str:
    """Why the CPU is no substitute: the GPUs serve, but hold fewer engines than requested."""
    on_gpus = any(isinstance(each, Candidate) and each.profile.gpu for each in verdicts)
    if constraints.num_replicas is None or on_gpus or not hardware.gpus:
        return ""
    fewer = _survey(profiles, hardware, replace(constraints, num_replicas=None))
    if not fewer.compatible or fewer.chosen.profile.gpu is None:
        return ""
    fitting = fewer.chosen.placement.num_replicas
    return (
        f"runs on the CPU; without NIM_REPLICAS ({constraints.num_replicas}), "
        f"{fewer.chosen.profile.model.name} runs on {hardware.summary} with {num_engines(fitting)}"
    )


def _off_cpu(verdict: Candidate | Rejection, reason: str) -> Candidate | Rejection:
    is_asked = isinstance(verdict, Candidate) or verdict.fit is not Fit.NOT_ASKED
    if verdict.profile.gpu is None and is_asked:
        return Rejection(verdict.profile, Fit.NOT_ASKED, reason)
    return verdict


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
    if kind == "model" and (safeguard := _SAFEGUARD.fullmatch(value)):
        hint = f"; NIM_MODEL_PATH=hf://openai/gpt-oss-safeguard-{safeguard[1]} serves it"
    raise InvalidConstraint(f"{kind} '{value}' is not in the catalogue{hint}; known: {shown}")


def _names(profile: Profile) -> tuple[str, ...]:
    """Return all that may select a profile: NIM 2 leaves the GPU and the goal out."""
    split = f"tp{profile.parallelism.tp}-pp{profile.parallelism.pp}"
    drafts = "-eagle3" if profile.draft else ""
    nim = f"{profile.engine}-{profile.precision}-{split}{drafts}"
    return (profile.id, profile.name, profile.title, nim, "default")


def _classify(
    profile: Profile, hardware: Hardware, constraints: Constraints
) -> Candidate | Rejection:
    if reason := _excluded(profile, constraints):
        return Rejection(profile, Fit.NOT_ASKED, reason)
    if reason := _off_by_default(profile, constraints):
        return Rejection(profile, Fit.NOT_ASKED, reason, is_off_by_default=True)
    if reason := _kept_back(profile, hardware, constraints):
        return Rejection(profile, Fit.NOT_ASKED, reason, is_off_by_default=True, is_kept_back=True)
    if profile.status == "planned":
        reason = f"is not supported yet: {profile.source}"
        return Rejection(profile, Fit.INCOMPATIBLE, reason)
    asked = profile
    if constraints.memory_fraction is not None:
        asked = profile.model_copy(update={"memory_fraction": constraints.memory_fraction})
    placed = place(asked, hardware, constraints.max_model_len, constraints.num_replicas)
    missing = _missing_engine(profile, constraints)
    if isinstance(placed, Shortage):
        fit = Fit.INCOMPATIBLE if placed.max_model_len is None else Fit.LOW_MEMORY
        reason = placed.reason
        if missing and fit is Fit.LOW_MEMORY:
            reason = f"{reason}; {missing}"
        return Rejection(profile, fit, reason, placed.max_model_len, missing, placed.cause)
    candidate = Candidate(profile, placed, placed.max_model_len)
    if missing:
        return Rejection(
            profile, Fit.NOT_INSTALLED, missing, missing_engine=missing, candidate=candidate
        )
    return candidate


def _excluded(profile: Profile, asked: Constraints) -> str:
    limit = profile.limits.max_model_len
    if asked.model is not None and asked.model not in profile.model.names:
        return f"serves {profile.model.name}, but you requested model {asked.model}"
    if asked.engine not in (None, profile.engine):
        return f"uses engine {profile.engine}, but you requested engine {asked.engine}"
    if asked.profile is not None and asked.profile not in _names(profile):
        return f"is not the requested profile '{asked.profile}'"
    if asked.quantize is not None and not profile.is_rounded:
        return f"keeps the weights as they are, but you requested NIM_QUANTIZE={asked.quantize}"
    for tag, value in asked.tags.items():
        if profile.tags[tag] != value:
            return f"has {tag}={profile.tags[tag]}, but you requested {tag}={value}"
    if asked.max_model_len is not None and asked.max_model_len > limit:
        return f"serves at most {limit:,} tokens, but you requested {asked.max_model_len:,}"
    return ""


def _off_by_default(profile: Profile, asked: Constraints) -> str:
    if asked.profile not in (None, "default"):
        return ""
    if profile.draft and "speculation" not in asked.tags:
        return (
            f"uses the draft head {profile.draft}, which disables some features "
            f"(docs/engines.md); select it with NIM_TAGS_SELECTOR=speculation=eagle3 or by name"
        )
    num = profile.parallelism.tp
    is_measured = profile.gpu is not None and profile.status == "tuned"
    if profile.engine == "native" and num > 1 and not is_measured and "tp" not in asked.tags:
        among = "processes" if profile.gpu is None else "GPUs, which was not measured"
        return f"shares each layer among several {among}; ask for it with -tp"
    if profile.is_rounded and asked.quantize is None:
        return "rounds the weights to MXFP4, which changes answers; ask for it: NIM_QUANTIZE=mxfp4"
    return ""


def _kept_back(profile: Profile, hardware: Hardware, constraints: Constraints) -> str:
    """Whether the model is held back: the demonstration model is not a default on GPU machines."""
    if not profile.model.is_demonstration or not hardware.gpus:
        return ""
    is_named = (
        constraints.model in profile.model.names
        or constraints.profile not in (None, "default")
        or "model" in constraints.tags
    )
    if is_named:
        return ""
    return (
        "is a demonstration model, which is served on a machine with a GPU only if named: "
        f"NIM_MODEL_NAME={profile.model.name}"
    )


def _missing_engine(profile: Profile, constraints: Constraints) -> str:
    if constraints.installed is None:
        return ""
    reason = constraints.installed.get(profile.engine, "not installed: it has no adapter")
    if reason is None and profile.gpu is not None:
        reason = constraints.cpu_only.get(profile.engine)
    return "" if reason is None else f"engine {profile.engine} is {reason}"


def _reason(
    ranked: tuple[Candidate, ...],
    num_profiles: int,
    hardware: Hardware,
    rivals: tuple[Rival, ...],
) -> str:
    if not ranked:
        return f"None of the {num_profiles} profiles can run on this machine ({hardware.summary})."
    chosen = ranked[0].profile
    if not rivals:
        if not hardware.gpus and chosen.model.is_demonstration:
            return "No GPU here, so the demonstration model is served."
        return f"No other profile can run on {hardware.summary}."
    return (
        f"{len(ranked)} of {num_profiles} profiles can run on {hardware.summary}; this one is "
        f"preferred to {rivals[0].profile.title} because {rivals[0].reason}."
    )
