"""`harmonium serve`: decide, start the engine, answer HTTP, drain.

Exit codes: 0 stopped as asked, 1 the start failed, 2 bad arguments, 3 nothing can run here.

The engine process is spawned before FastAPI is even imported: its own imports take
longest, and both run side by side.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import uvloop

from auth.base import AccessError
from engines.errors import EngineStartError
from engines.process.child import ChildError
from engines.release import release
from profiles.errors import NoCompatibleProfile, ProfileError
from service.cli import config_file, face
from service.cli.download_question import model_instead
from service.cli.flags import (
    PARALLELISM,
    SettingsCommand,
    given,
    parallelism_flags,
    settings_flags,
)
from service.run.database import check_place
from service.run.first_key import tell_access, with_made_key
from service.run.launching import check_server, has_page, watching
from service.run.listener import ListenError, allow_open_files, listen, url_of
from service.run.scratch import NoTemporaryFolder, check_temporary, with_cache
from service.run.startup import (
    Launch,
    fallback,
    prepare,
    tell,
    warn_of_open_cache,
    warn_of_unknown_names,
)
from service.run.termination import FORCED, Terminated
from service.run.wiring import check_access
from service.run.worker_count import with_workers
from service.settings.settings import Settings, load, secret_values
from service.settings.terminal import runnable
from service.store.base import StoreError
from service.telemetry import logs

log = logging.getLogger("harmonium")

_KNOWN_ERRORS = (
    ListenError,
    NoTemporaryFolder,
    ProfileError,
    EngineStartError,
    StoreError,
    AccessError,
    ChildError,
)
FAILED, NOTHING_CAN_RUN = 1, 3
_LIMITS = {
    "can't start new thread": "; raise the limit of processes (docker run --pids-limit, ulimit -u)"
}


@click.command(cls=SettingsCommand)
@click.option(
    "--dry-run", is_flag=True, help="Print the settings and what would be served; start nothing."
)
@click.option(
    "--config",
    "file",
    type=Path,
    metavar="FILE",
    help="Settings as YAML, e.g. `server-port: 8080`; flags and variables take precedence.",
)
@parallelism_flags
@click.option("-v", "--verbose", is_flag=True, help="Also print log lines on a terminal.")
@click.argument("model", required=False)
@settings_flags
@click.pass_obj
def serve(
    started_at: float,
    /,
    dry_run: bool,
    verbose: bool,
    file: Path | None,
    tensor_parallel_size: int | None,
    pipeline_parallel_size: int | None,
    model: str | None,
    **flags: Any,
) -> int:
    """Select a profile for this machine and serve it.

    MODEL is a name (gpt-oss-20b, openai/gpt-oss-120b, nano), a folder, a GGUF file or a URI, as
    NIM_MODEL_NAME and NIM_MODEL_PATH take them.
    """
    own = {
        "model": model,
        "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
    }
    chosen = with_own_names(
        given(flags) | given(own), {} if file is None else config_file.read(file)
    )
    if verbose:
        chosen.setdefault("log_level", "INFO")
    settings = load(chosen)
    try:
        return tell_plan(settings, chosen) if dry_run else run(settings, started_at)
    except Terminated:  # before the server took the signal over
        log.info("Stopped.")
        return 0


def with_own_names(flags: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the command line and a file's, MODEL and sizes of parallelism among them.

    Raises click.UsageError where two of them name a model, or such a size.
    """
    chosen = {**config_file.unset(held, flags), **flags}
    model = chosen.pop("model", None)
    if model is not None:
        if chosen.keys() & {"model_name", "model_path"}:
            raise click.UsageError(f"The model is named twice: {model}, and --model-name or -path.")
        chosen["model_path" if _is_place(model) else "model_name"] = model
    for name, tag in PARALLELISM.items():
        if (size := chosen.pop(name, None)) is None:
            continue
        tags = str(chosen.get("tags_selector", ""))
        if re.search(rf"(^|,)\s*{tag}=", tags):
            raise click.UsageError(f"-{tag} {size} and --tags-selector {tags} name it twice.")
        chosen["tags_selector"] = f"{tags},{tag}={size}" if tags else f"{tag}={size}"
    return chosen


def _is_place(model: str) -> bool:
    """Whether MODEL is a folder, a file or a URI; a name without a slash never is."""
    is_path = model.startswith((".", "/", "~")) or model.endswith(".gguf")
    return "://" in model or is_path or ("/" in model and Path(model).exists())


def tell_plan(settings: Settings, flags: Mapping[str, Any]) -> int:
    """Print what these settings would serve; return the exit code."""
    from service.cli.config import as_text  # a start waits for nothing that a dry run alone needs

    click.echo(as_text(settings, flags) + "\n")
    logs.configure(settings.log_level, settings.jsonl_logging, secret_values(settings))
    warn_of_unknown_names()
    try:
        check_access(settings)
        check_server(settings)
        tell(prepare(with_cache(settings)))
    except _KNOWN_ERRORS as error:
        return _failed(error)
    return 0


def run(settings: Settings, started_at: float) -> int:
    configured, settings = settings, with_made_key(settings)
    is_made = settings is not configured
    is_brief = face.is_shown(settings)
    secrets = secret_values(settings)
    logs.configure(settings.log_level, settings.jsonl_logging, secrets, is_brief=is_brief)
    log.info("Harmonium %s", release())
    warn_of_unknown_names()
    warn_of_open_cache(settings.cache_path)
    allow_open_files()
    try:
        check_temporary()
        settings = with_cache(settings)
        with listen(settings.server_host, settings.server_port) as listener:
            check_access(settings)
            check_server(settings)
            check_place(settings)
            port = listener.getsockname()[1]
            tell_access(settings, port, is_made=is_made)
            launch = prepare(settings)
            if (model := model_instead(settings, launch)) is not None:
                settings = settings.model_copy(update={"model_name": model})
                launch = prepare(settings)
            while True:
                tell(launch)
                if is_brief:
                    face.show_chosen(launch, release())
                try:
                    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                        return runner.run(_serve(settings, launch, listener, started_at))
                except EngineStartError as error:
                    launch = _stand_in(settings, launch, error)
    except _KNOWN_ERRORS as error:
        return _failed(error)
    except OSError as error:  # such as a disk that is full
        log.error("The server failed: %s", error, exc_info=log.isEnabledFor(logging.DEBUG))
        return FAILED
    except KeyboardInterrupt:
        return FORCED


def _failed(error: Exception) -> int:
    hint = next((remedy for words, remedy in _LIMITS.items() if words in str(error)), "")
    log.error("%s%s", runnable(str(error)), hint)
    return NOTHING_CAN_RUN if isinstance(error, NoCompatibleProfile) else FAILED


def _stand_in(settings: Settings, launch: Launch, error: EngineStartError) -> Launch:
    """Find the profile to fall back to; raises the error if that is not allowed."""
    other = fallback(settings, launch, str(error))
    if other is None:
        raise error
    names = [each.selection.chosen.profile.title for each in (launch, other)]
    if not settings.engine_fallback:
        log.error("NIM_ENGINE_FALLBACK=1 (--engine-fallback) would serve %s instead", names[1])
        raise error
    log.error("%s cannot start: %s", names[0], error)
    log.error("NIM_ENGINE_FALLBACK is set: serving %s instead", names[1])
    return other


async def _serve(
    settings: Settings, launch: Launch, listener: socket.socket, started_at: float
) -> int:
    from service.run.service import SharedService  # no other command waits for it

    is_brief = face.is_shown(settings)
    watchers = watching(settings, launch.served_name)  # each worker has its own
    settings = await with_workers(settings, launch)
    service = SharedService(settings, launch, listener, is_brief=is_brief)
    shown = asyncio.create_task(face.progress(lambda: service.step)) if is_brief else None

    def tell() -> None:
        if shown is not None:
            face.end_progress(shown)
        tell_ready(settings, launch, url_of(listener), started_at)

    def tell_stopping() -> None:
        if shown is not None:
            face.end_progress(shown)
            face.show_stopping()

    try:
        code = await service.run(tell, tell_stopping)
    finally:
        if shown is not None:
            face.end_progress(shown)
            await asyncio.wait([shown])
        for watcher in watchers:
            await watcher.close()
    if is_brief:
        face.show_stopped()
    return code


def tell_ready(settings: Settings, launch: Launch, url: str, started_at: float) -> None:
    seconds = time.monotonic() - started_at
    if settings.ssl_mode != "disabled":
        url = url.replace("http:", "https:", 1)
    log.info(
        "Ready after %.1f s: serving %s on %s",
        seconds,
        launch.served_name,
        url,
        extra=logs.STANDS_OUT,
    )
    if face.is_shown(settings):
        face.show_ready(settings, url, launch.served_name, seconds)
        return
    place = "in a browser, or here" if has_page(settings) else "here"
    log.info("Try it %s:\n\n%s\n", place, curl_line(url, launch.served_name, settings))


def curl_line(url: str, model: str, settings: Settings) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.has_auth else ""
    return (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d '{json.dumps(body)}'"
    )
