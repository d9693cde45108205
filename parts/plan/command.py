"""`harmonium plan`: what a model would do on GPUs, and how many of them some users need.

Exit codes: 0 the GPUs suffice, 3 they do not, 2 bad arguments.
"""

from __future__ import annotations

from pathlib import Path

import click

from parts.plan.capacity import Demand, make_plan
from parts.plan.chart import as_svg
from parts.plan.report import as_json, as_text
from profiles.catalogue.catalogue import Catalogue, load
from profiles.catalogue.engines import engine_names
from profiles.errors import InvalidConstraint, InvalidHardware, ModelStoreError
from profiles.selection.selector import check_constraints
from profiles.selection.verdicts import Constraints
from service.run.machine import visible_hardware
from service.run.pythons import engines_here
from service.run.servable import Servable, servable
from service.settings.settings import Settings
from service.settings.settings import load as load_settings

SUFFICES, BAD_ARGUMENTS, DOES_NOT = 0, 2, 3


@click.command
@click.argument("model")
@click.option(
    "--gpu",
    "--hardware",
    "gpu",
    metavar="H200X8",
    help="GPUs in the form of --hardware, e.g. h200x8; h200: as many as needed.",
)
@click.option("--users", type=int, default=1, show_default=True, help="Concurrent users.")
@click.option("--isl", type=int, default=1024, show_default=True, help="Prompt tokens per request.")
@click.option(
    "--osl",
    type=int,
    default=1024,
    show_default=True,
    help="Answer tokens per request, reasoning included.",
)
@click.option("--ttft", type=float, metavar="MS", help="Time to first token, p95, in ms.")
@click.option("--tps", type=float, metavar="TOK/S", help="Tokens per second for every user.")
@click.option("--engine", type=click.Choice(engine_names()), help="Only this engine.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write the plot to this file."
)
@click.option("--json", "is_json", is_flag=True, help="Machine-readable output.")
def plan(
    model: str,
    gpu: str | None,
    users: int,
    isl: int,
    osl: int,
    ttft: float | None,
    tps: float | None,
    engine: str | None,
    svg: Path | None,
    is_json: bool,
) -> int:
    """Estimate speed and GPU count for a load, from a model of the hardware.

    MODEL: a model of the catalogue, or a checkpoint as NIM_MODEL_PATH names it.
    """
    demand = Demand(users, isl, osl, None if ttft is None else ttft / 1e3, tps)
    try:
        settings, known = _settings(model), load()
        asked = _asked(settings, known, model)
        # Before the GPUs are looked at.
        check_constraints(asked.profiles, Constraints(model=asked.model))
        gpus = gpu or _gpus_here()
        found = make_plan(asked.profiles, str(asked.model), gpus, demand, engine, asked.quantize)
        missing = engines_here(settings).installed
        if svg is not None:
            svg.write_text(as_svg(found), encoding="utf-8")
    except (InvalidConstraint, InvalidHardware, ModelStoreError) as error:
        click.echo(f"harmonium plan: {error}", err=True)
        return BAD_ARGUMENTS
    except OSError as error:
        click.echo(f"harmonium plan: --svg {svg} cannot be written: {error.strerror}", err=True)
        return BAD_ARGUMENTS
    click.echo(as_json(found, missing) if is_json else as_text(found, missing))
    return SUFFICES if found.chosen else DOES_NOT


def _settings(model: str) -> Settings:
    """The settings; a model that is a place is taken as NIM_MODEL_PATH."""
    is_place = "://" in model or model.startswith((".", "/", "~")) or model.endswith(".gguf")
    return load_settings({"model_path": model} if is_place else {})


def _asked(settings: Settings, known: Catalogue, model: str) -> Servable:
    """The profiles of the checkpoint at NIM_MODEL_PATH if it is this model, else the catalogue's.

    Its files say in which precision the weights are.
    """
    if settings.model_path is None:
        return Servable(model, known.profiles)
    found = servable(settings, known)
    names = {name for p in found.profiles if found.model in p.model.names for name in p.model.names}
    is_it = model in names or str(settings.model_path) == str(Path(model).expanduser())
    return found if is_it or "://" in model else Servable(model, known.profiles)


def _gpus_here() -> str:
    """The GPUs of this machine, in the form of --gpu."""
    hardware = visible_hardware()
    keys = {gpu.key for gpu in hardware.gpus}
    if len(keys) != 1 or None in keys:
        found = hardware.no_gpu_reason or hardware.summary
        which = f"No supported GPU here ({found})" if hardware.gpus else "No GPU here"
        raise InvalidHardware(f"{which}. Name one: `--gpu h200x8`.")
    return f"{keys.pop()}x{len(hardware.gpus)}"
