"""`harmonium verify`: perplexity and greedy tokens of fixed texts, beside transformers.

It starts the engine that `serve` would start with the same settings, asks it, stops it, and then
lets transformers compute the same from the same files. Exit codes: 0 they agree, 1 they do not or
one of them cannot run, 3 nothing can run here.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import click

from engines.errors import EngineError, EngineStartError
from profiles.errors import NoCompatibleProfile, ProfileError
from service.cli.flags import SettingsCommand, given, parallelism_flags, settings_flags
from service.cli.serve import with_own_names
from service.run.startup import Launch, obtain, prepare, tell, warn_of_unknown_names
from service.settings.settings import Settings, load, secret_values
from service.telemetry import logs

log = logging.getLogger("harmonium")

AGREES, FAILED, NOTHING_CAN_RUN = 0, 1, 3


@click.command(cls=SettingsCommand)
@click.option(
    "--reference-python",
    type=Path,
    metavar="PATH",
    help="A Python with transformers and this package. Default: this one.",
)
@parallelism_flags
@settings_flags
def verify(reference_python: Path | None, **flags: Any) -> int:
    """Compare the engine with transformers: perplexity and greedy tokens."""
    settings = load(with_own_names(given(flags), {}))
    logs.configure(settings.log_level, settings.jsonl_logging, secret_values(settings))
    warn_of_unknown_names()
    try:
        launch = prepare(settings)
        tell(launch)
        _check(launch)
        obtain(settings, launch)
        return asyncio.run(_verify(settings, launch, reference_python))
    except (ProfileError, EngineError) as error:
        log.error("%s", error)
        return NOTHING_CAN_RUN if isinstance(error, NoCompatibleProfile) else FAILED


def _check(launch: Launch) -> None:
    profile = launch.selection.chosen.profile
    if profile.reads_gguf:
        raise EngineStartError(
            f"{profile.title} runs a GGUF file, which transformers cannot compare; choose a profile"
            " of another engine (NIM_TAGS_SELECTOR=engine=native)"
        )


async def _verify(settings: Settings, launch: Launch, python: Path | None) -> int:
    from parts.verify.report import rows, table
    from parts.verify.run import by_engine, by_transformers

    log.info("Asking %s", launch.selection.chosen.profile.title)
    ours = await by_engine(settings, launch)
    log.info("Running transformers on %s", launch.model_dir)
    theirs, margins = await by_transformers(python or Path(sys.executable), launch)
    found = rows(ours, theirs, margins)
    click.echo("\n".join(table(ours, theirs, found)))
    if all(row.agrees for row in found):
        click.echo(f"{launch.selection.chosen.profile.model.name}: they agree.")
        return AGREES
    click.echo("The results differ. Please report the table and the output of `harmonium doctor`.")
    return FAILED
