"""`harmonium build-engine`: do the slow part of a first start ahead of it.

It starts the engine that `serve` would start with the same settings, which leaves its packed
weights and compiled kernels in the cache, or checks those that are there, and stops it.
Exit codes: 0 all is there, 1 it is not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

import click

from engines.errors import EngineStartError
from engines.factory import prebuilt
from engines.native.checkpoint_digest import checkpoint_digest
from engines.process.supervisor import EngineSupervisor
from profiles.checkpoints.packed import delete_shards
from profiles.errors import ProfileError
from profiles.hardware.machine import GB
from service.cli.flags import SettingsCommand, given, settings_flags
from service.run.startup import (
    Launch,
    environments_of,
    obtain,
    prepare,
    tell,
    warn_of_unknown_names,
)
from service.settings.settings import load, secret_values
from service.telemetry import logs

log = logging.getLogger("harmonium")

BUILT, NOT_BUILT = 0, 1


@click.command(cls=SettingsCommand)
@click.option("--dry-run", is_flag=True, help="Show what is missing; build nothing.")
@click.option("--tune", is_flag=True, help="Measure kernel variants on this GPU; keep the fastest.")
@click.option(
    "--packed-only",
    is_flag=True,
    help="Delete the checkpoint's shards afterwards; halves the disk space.",
)
@settings_flags
def build_engine(dry_run: bool, tune: bool, packed_only: bool, **flags: Any) -> int:
    """Pack weights and compile kernels in advance, so that `serve` starts fast."""
    settings = load(given(flags))
    logs.configure(settings.log_level, settings.jsonl_logging, secret_values(settings))
    warn_of_unknown_names()
    try:
        launch = prepare(settings)
        tell(launch)
        if dry_run:
            return _tell_states(launch)
        if packed_only:
            _check_deletable(launch)
        obtain(settings, launch)
        built = _build(launch, tune=tune)
        if packed_only and built == BUILT:
            freed = delete_shards(launch.model_dir, checkpoint_digest(launch.model_dir))
            click.echo(f"Deleted the shards of {launch.model_dir}: {freed / GB:.1f} GB freed")
        return built
    except (ProfileError, EngineStartError) as error:
        log.error("%s", error)
        return NOT_BUILT


def _check_deletable(launch: Launch) -> None:
    """Raise EngineStartError unless packed weights can replace the checkpoint, and it is ours."""
    if launch.spec.artefact_dir is None:
        title = launch.selection.chosen.profile.title
        raise EngineStartError(
            f"--packed-only: {title} reads the checkpoint itself; nothing is packed"
        )
    if launch.own is not None:
        raise EngineStartError(
            f"--packed-only deletes shards, and {launch.model_dir} is not the cache's own:"
            " NIM_MODEL_PATH names it"
        )


def _build(launch: Launch, *, tune: bool) -> int:
    if _states(launch):
        started_s = time.monotonic()
        options = {**launch.spec.options, "keep_weights": True, "tune": tune}
        asyncio.run(_start_and_stop(replace(launch, spec=replace(launch.spec, options=options))))
        log.info("Built or checked in %.1f s", time.monotonic() - started_s)
    return _tell_states(launch)


async def _start_and_stop(launch: Launch) -> None:
    supervisor = EngineSupervisor(launch.spec, environment=environments_of(launch)[0])
    try:
        await supervisor.start()
    finally:
        await supervisor.stop()


def _states(launch: Launch) -> dict[str, str | None]:
    gpus = launch.selection.chosen.placement.gpus
    return prebuilt(launch.spec, gpus[0].compute_capability) if gpus else {}


def _tell_states(launch: Launch) -> int:
    """Print a line for each part; return 0 if all are there."""
    if launch.to_fetch:
        return _tell_fetch(launch)
    states = _states(launch)
    if not states:
        title = launch.selection.chosen.profile.title
        click.echo(f"Nothing to build: {title} uses the checkpoint directly.")
    for folder, reason in states.items():
        click.echo(f"{folder} {reason or 'is there'}")
    return NOT_BUILT if any(states.values()) else BUILT


def _tell_fetch(launch: Launch) -> int:
    """Print what must be downloaded before anything can be checked."""
    size = sum(file.size_bytes for file in launch.to_fetch) / GB
    title = launch.selection.chosen.profile.title
    click.echo(
        f"{launch.model_dir}: {len(launch.to_fetch)} files ({size:.1f} GB) are missing and will "
        f"be downloaded first; then {title} is built, unless it exists already"
    )
    return NOT_BUILT
