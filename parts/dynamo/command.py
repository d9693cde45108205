"""`harmonium dynamo-worker`: serve an engine of this machine to a deployment of NVIDIA Dynamo."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import click
import uvloop

from engines.errors import EngineStartError
from engines.release import release
from parts.dynamo.front import ENGINE
from profiles.errors import InvalidConstraint, NoCompatibleProfile, ProfileError
from service.cli.flags import SettingsCommand, given, settings_flags
from service.cli.serve import FAILED, NOTHING_CAN_RUN, with_own_names
from service.run.listener import allow_open_files
from service.run.pythons import engines_here
from service.run.startup import prepare, tell, warn_of_open_cache, warn_of_unknown_names
from service.settings.settings import Settings, load, secret_values
from service.telemetry import logs

log = logging.getLogger("harmonium")

INTERRUPTED: Final = 130


@click.command(cls=SettingsCommand)
@click.argument("model", required=False)
@settings_flags
def dynamo_worker(model: str | None, **flags: Any) -> int:
    """Serve an engine of this machine to a deployment of NVIDIA Dynamo.

    MODEL is as for `harmonium serve`. Prompts come from a front: `harmonium serve` with
    NIM_DYNAMO_ENDPOINT.
    """
    settings = load(with_own_names(given(flags) | ({"model": model} if model else {}), {}))
    logs.configure(settings.log_level, settings.jsonl_logging, secret_values(settings))
    log.info("Harmonium %s", release())
    warn_of_unknown_names()
    warn_of_open_cache(settings.cache_path)
    allow_open_files()
    try:
        return _run(settings)
    except (ProfileError, EngineStartError) as error:
        log.error("%s", error)
        return NOTHING_CAN_RUN if isinstance(error, NoCompatibleProfile) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(settings: Settings) -> int:
    from parts.dynamo.worker_service import WorkerService

    if reason := engines_here(settings).installed[ENGINE]:
        raise InvalidConstraint(f"the library of NVIDIA Dynamo is {reason}")
    # Its engine is one of this machine, not the deployment.
    launch = prepare(settings.model_copy(update={"dynamo_endpoint": None}))
    tell(launch)

    async def serve() -> int:
        return await WorkerService(settings, launch).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())
