"""`harmonium profiles` (also `list-model-profiles`): what could run here, and why not the rest.

Exit codes: 0 something can run, 3 nothing can, 2 bad arguments.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import click

from profiles.catalogue.catalogue import load
from profiles.catalogue.engines import engine_names
from profiles.catalogue.models import Goal, Profile
from profiles.errors import InvalidConstraint, InvalidHardware, ModelStoreError
from profiles.hardware.machine import GB, Cpu, Gpu, Hardware
from profiles.hardware.written import parse_hardware
from profiles.selection.memory import memory_need
from profiles.selection.notes import where
from profiles.selection.remedies import by_cause, counted
from profiles.selection.selector import survey
from profiles.selection.verdicts import Candidate, Constraints, Fit, Rejection, Selection
from service.run.machine import visible_hardware
from service.run.pythons import engines_here
from service.run.servable import Servable, constraints_of, servable
from service.settings.settings import Settings
from service.settings.settings import load as load_settings
from service.settings.terminal import width_of, wrapped

# The other states are shown by their name.
_STATUS = {"compiled": "compiled and limit-checked, not run on this card"}
CAN_RUN, BAD_ARGUMENTS, NOTHING_CAN_RUN = 0, 2, 3


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command; they win over settings."""

    hardware: str | None
    model: str | None
    engine: str | None
    goal: Goal | None
    max_model_len: int | None
    all_engines: bool
    is_json: bool


@click.command
@click.argument("machine", required=False, metavar="[HARDWARE]")
@click.option(
    "--hardware",
    "--gpu",
    "hardware",
    metavar="H200X8",
    help="Show another machine: h200x8, h100:used=15%, h100:2g.20gb, h200x2+l40s, cpux16.",
)
@click.option("--model", metavar="NAME", help="Only this model, e.g. gpt-oss-20b.")
@click.option("--engine", type=click.Choice(engine_names()), help="Only this engine.")
@click.option(
    "--goal", type=click.Choice(get_args(Goal)), help="Prefer profiles tuned for this goal."
)
@click.option("--max-model-len", type=int, metavar="TOKENS", help="Context length that must fit.")
@click.option("--all-engines", is_flag=True, help="Assume that every engine is installed.")
@click.option("--json", "is_json", is_flag=True, help="Machine-readable output.")
def profiles(machine: str | None, **options: Any) -> int:
    """List the profiles: which fit, which is selected, and why the others are not."""
    if machine is not None and options["hardware"] is not None:
        raise click.UsageError("The hardware is given twice: as HARDWARE and with --hardware.")
    options["hardware"] = machine or options["hardware"]
    try:
        return run(Asked(**options), load_settings())
    except BrokenPipeError:  # `harmonium profiles | head`
        sys.stdout = None  # there is nothing left to flush it to
        return CAN_RUN


def run(asked: Asked, settings: Settings) -> int:
    try:
        hardware = parse_hardware(asked.hardware) if asked.hardware else visible_hardware()
        constraints, known = _asked_of(asked, settings)
        selection = survey(known, hardware, constraints)
    except (InvalidHardware, InvalidConstraint, ModelStoreError) as error:
        click.echo(f"harmonium profiles: {error}", err=True)
        return BAD_ARGUMENTS
    if asked.is_json:
        click.echo(json.dumps(_as_json(hardware, selection), indent=2))
    else:
        click.echo("\n".join(_as_text(hardware, selection)))
    return CAN_RUN if selection.compatible else NOTHING_CAN_RUN


def _asked_of(asked: Asked, settings: Settings) -> tuple[Constraints, tuple[Profile, ...]]:
    """The constraints of `harmonium serve` with these settings and options, and their profiles."""
    known = load()
    found = Servable(asked.model, known.profiles) if asked.model else servable(settings, known)
    engines = engines_here(settings)
    constraints = replace(
        constraints_of(settings, engines, found),
        goal=asked.goal or settings.profile_goal,
        engine=asked.engine,
        max_model_len=asked.max_model_len or settings.max_model_len,
        installed=None if asked.all_engines else engines.installed,
        # What is built in here says nothing of a machine that is only named.
        cpu_only={} if asked.all_engines or asked.hardware else engines.cpu_only,
    )
    return constraints, found.profiles


def _as_text(hardware: Hardware, selection: Selection) -> list[str]:
    return [
        "SYSTEM INFO" + (" (a described machine, not this one)" if hardware.is_assumed else ""),
        *_gpu_lines(hardware),
        *_cpu_lines(hardware.cpu),
        "MODEL PROFILES",
        "- Compatible with system and runnable:",
        *_runnable(selection),
        *_rejected(selection, Fit.LOW_MEMORY, "Compatible with system, but too little memory"),
        *_rejected(selection, Fit.NOT_INSTALLED, "Compatible with system, but not installed"),
        *_rejected(selection, Fit.INCOMPATIBLE, "Incompatible with system"),
        *_rejected(selection, Fit.NOT_ASKED, "Off by default", is_off_by_default=True),
        *_rejected(selection, Fit.NOT_ASKED, "Excluded by your request"),
        "SELECTED",
        *_selected(selection),
    ]


def _gpu_lines(hardware: Hardware) -> list[str]:
    lines = [f"- GPUs{f' (driver {hardware.driver})' if hardware.driver else ''}:"]
    lines += [f"  - {_gpu(gpu)}" for gpu in hardware.gpus]
    if not hardware.gpus:
        lines.append(f"  - none: {hardware.no_gpu_reason}")
    return lines + [f"  - {warning}" for warning in hardware.warnings]


def _gpu(gpu: Gpu) -> str:
    major, minor = gpu.compute_capability
    return (
        f"[{gpu.pci_id}] ({gpu.index}) {gpu.name} "
        f"({gpu.family}, compute capability {major}.{minor}) "
        f"[{_gb(gpu.total_bytes)}, {_gb(gpu.free_bytes)} free]"
    )


def _cpu_lines(cpu: Cpu) -> list[str]:
    cores = "core" if cpu.num_cores == 1 else "cores"
    memory = f"{_gb(cpu.total_bytes)} memory, {_gb(cpu.free_bytes)} free"
    lines = [f"- CPU: {cpu.model}, {cpu.num_cores} {cores} [{memory}]"]
    return lines + ([f"  - {' '.join(cpu.instruction_sets)}"] if cpu.instruction_sets else [])


def _runnable(selection: Selection) -> list[str]:
    lines = []
    for each in selection.compatible:
        profile = each.profile
        status = _STATUS.get(profile.status, profile.status)
        needs = f"[{_requires(profile, each.max_model_len)}, {status}]"
        mark = "  <- selected" if each is selection.chosen else ""
        lines.append(f"  - {profile.id} ({profile.title}) {needs}{mark}")
    return lines or ["  (none)"]


def _rejected(
    selection: Selection, fit: Fit, heading: str, is_off_by_default: bool = False
) -> list[str]:
    """List a class by cause; profiles that are far from running are only counted."""
    groups = by_cause(
        rejection
        for rejection in selection.rejections
        if rejection.fit is fit and rejection.is_off_by_default == is_off_by_default
    )
    lines = [f"- {heading}:"] if groups else []
    for cause, rejections in groups.items():
        lines += _wrapped(f"- {cause}:")
        if fit is Fit.NOT_ASKED or rejections[0].cause:
            lines.append(f"      {counted(rejections)} (--json has each)")
        else:
            lines += [f"      {_title(rejection)}" for rejection in rejections]
    return lines


def _title(rejection: Rejection) -> str:
    profile, shorter = rejection.profile, rejection.max_model_len
    if shorter is None:
        return profile.title
    now = _requires(profile, profile.limits.max_model_len)
    then = _requires(profile, shorter).removeprefix("requires ")
    advice = f"try --max-model-len={shorter} to reduce to {then}"
    return f"{profile.id} ({profile.title}) [{now}, {advice}]"


def _requires(profile: Profile, max_model_len: int) -> str:
    need = memory_need(profile)
    head = f", {_gb(need.draft_bytes)} of it the draft head" if need.draft_bytes else ""
    total = _gb(need.total_bytes(max_model_len))
    return f"requires >={total}{'/gpu' if profile.gpu else ''}{head}"


def _selected(selection: Selection) -> list[str]:
    if not selection.compatible:
        return [*_wrapped(selection.reason, "- none: "), *_wrapped(selection.remedy)]
    return [
        f"- {selection.chosen.profile.title}",
        f"  {where(selection.chosen.placement)}",
        *_wrapped(selection.reason),
        *(
            line
            for rival in selection.rivals[1:]
            for line in _wrapped(
                f"It is preferred to {rival.profile.title} because {rival.reason}."
            )
        ),
        *(line for note in selection.notes for line in _wrapped(f"Note: {note}")),
    ]


def _wrapped(text: str, begin: str = "  ") -> list[str]:
    return wrapped(text, width_of(sys.stdout), begin, "    ")


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / GB:.1f} GB"


def _as_json(hardware: Hardware, selection: Selection) -> dict[str, Any]:
    return {
        "hardware": asdict(hardware),
        "selected": selection.chosen.profile.id if selection.compatible else None,
        "reason": selection.reason,
        "rivals": [
            {"id": rival.profile.id, "name": rival.profile.title, "reason": rival.reason}
            for rival in selection.rivals
        ],
        "notes": list(selection.notes),
        "remedy": selection.remedy,
        "profiles": [
            *(_candidate_json(candidate) for candidate in selection.compatible),
            *(_rejection_json(rejection) for rejection in selection.rejections),
        ],
    }


def _profile_json(profile: Profile, fit: Fit, max_model_len: int) -> dict[str, Any]:
    need = memory_need(profile)
    return {
        "id": profile.id,
        "name": profile.name,
        "model": profile.model.name,
        "fit": fit.value,
        "engine": profile.engine,
        "goal": profile.goal,
        "precision": profile.precision,
        **profile.parallelism.model_dump(),
        "limits": profile.limits.model_dump(),
        "required_bytes_per_device": need.total_bytes(max_model_len),
        "draft_bytes_per_device": need.draft_bytes,
        "status": profile.status,
        "source": profile.source,
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    return {
        **_profile_json(candidate.profile, Fit.RUNNABLE, candidate.max_model_len),
        "gpu_indices": [gpu.index for gpu in candidate.placement.gpus],
        "replicas": candidate.placement.num_replicas,
        "max_model_len": candidate.max_model_len,
        "kv_tokens": candidate.placement.kv_tokens,
    }


def _rejection_json(rejection: Rejection) -> dict[str, Any]:
    profile = rejection.profile
    return {
        **_profile_json(profile, rejection.fit, profile.limits.max_model_len),
        "reason": rejection.reason,
        "fitting_max_model_len": rejection.max_model_len,
    }
