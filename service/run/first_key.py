"""Safe by default: a server without keys that is reachable from other machines generates one."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

from pydantic import SecretStr

from auth.address import is_loopback
from auth.base import AccessError
from auth.key_record import new_key
from profiles.volume.kinds import shared_type
from profiles.volume.own import make_own_folder
from service.settings.settings import Settings

log = logging.getLogger("harmonium")

_LASTING = (
    "NIM_API_KEYS or NIM_API_KEYS_PATH sets permanent keys; NIM_AUTH=off disables authentication."
)


def with_made_key(settings: Settings) -> Settings:
    """Return the settings, with a new key where callers must be known and no way is configured."""
    if settings.auth == "off" or settings.has_auth or is_loopback(settings.server_host):
        return settings
    return settings.model_copy(update={"api_keys": SecretStr(new_key()[0])})


def tell_access(settings: Settings, port: int, *, is_made: bool) -> None:
    """Log who may call; raises AccessError when a generated key cannot be delivered.

    A made key goes to the terminal. What is no terminal is some log: there it goes to a file that
    only its owner may read.
    """
    host = settings.server_host
    if is_made:
        _hand_over(settings, port)
    elif settings.auth == "off" and not is_loopback(host):
        log.warning("NIM_AUTH=off: anyone who can reach %s may use this server.", host)
    if "*" in settings.cors_origins:
        log.warning(
            "NIM_CORS_ALLOW_ORIGINS=*: any web page may call this server%s",
            "." if settings.has_auth else ", which has no keys; list the pages instead.",
        )


def _hand_over(settings: Settings, port: int) -> None:
    [key] = settings.api_key_list
    log.info(
        "No keys are configured and %s is reachable from other machines: generated one.",
        settings.server_host,
    )
    if sys.stdout.isatty():
        print(f"API key of this run, shown only once: {key}", flush=True)
        log.info("The key of this run was printed on the terminal. %s", _LASTING)
    else:
        path = _kept(key, settings.cache_path / f"api-key-{port}")
        log.info("The key of this run is in %s, readable by its owner only. %s", path, _LASTING)


def _kept(key: str, path: Path) -> Path:
    """Write the key to a file of mode 0600: this one, else one in the folder of temporary files.

    Where other hosts may open its volume, which write their keys for the same port, it lies in
    this host's own folder.
    """
    try:
        if shared_type(path) is not None:
            path = make_own_folder() / path.name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of the run before; its mode may be another
        return _written(key, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), path)
    except OSError as error:
        reason = error.strerror or f"{error}"
    try:
        descriptor, name = tempfile.mkstemp(prefix="harmonium-api-key-")  # mode 0600
        return _written(key, descriptor, Path(name))
    except OSError as error:
        raise AccessError(
            f"No keys are configured, and the generated one cannot be written: {path}: "
            f"{reason}; {tempfile.gettempdir()}: {error.strerror}. {_LASTING}"
        ) from None


def _written(key: str, descriptor: int, path: Path) -> Path:
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{key}\n")
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path
