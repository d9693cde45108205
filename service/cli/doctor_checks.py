"""What can be found out about a machine before a server runs on it; each check says what to do."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from auth.address import is_loopback
from auth.base import AccessError
from engines.parts import facets
from profiles.hardware.machine import GB, Hardware
from profiles.selection.verdicts import Selection
from service.http.tls import tls_of
from service.run.listener import ListenError, listen
from service.run.wiring import authenticator_of
from service.settings.settings import Settings, unknown_names

State = Literal["ok", "warning", "failed"]

MIN_FREE_BYTES: Final = 2 * 10**9  # for logs, stored responses and the bundled model
MIN_OPEN_FILES: Final = 4096  # each connection is one
_CONNECT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `detail` has the values and, unless it is ok, the remedy."""

    name: str
    state: State
    detail: str


class PartChecks:
    """CHECKS of parts/<name>/checks.py: what `harmonium doctor` looks at for a part."""

    def of(self, settings: Settings) -> Iterable[Check]:
        """Run the checks that these settings call for."""
        return ()


def all_checks(
    settings: Settings, hardware: Hardware, choose: Callable[[], tuple[Selection, Path]]
) -> Iterator[Check]:
    """Run every check; `choose` picks profile and files as a start would, or raises why not."""
    yield settings_known()
    yield port_free(settings)
    yield cache_writable(settings.cache_path)
    yield disk_free(settings.cache_path)
    yield gpu_driver(hardware)
    yield checkpoint(choose)
    yield auth_state(settings)
    if settings.ssl_mode != "disabled":
        yield tls_files(settings)
    yield open_files()
    for part in facets("checks", PartChecks).values():
        yield from part.of(settings)


def settings_known() -> Check:
    unknown = [f"{name} (did you mean {near}?)" if near else name for name, near in unknown_names()]
    if unknown:
        return Check("settings", "warning", f"these have no effect: {', '.join(unknown)}")
    return Check("settings", "ok", "all NIM_* variables are known")


def port_free(settings: Settings) -> Check:
    host, port = settings.server_host, settings.server_port
    try:
        listen(host, port).close()
    except ListenError as error:
        return Check("port", "failed", str(error))
    return Check("port", "ok", f"{host} port {port} is free")


def cache_writable(path: Path) -> Check:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
    except OSError as error:
        if os.access(path, os.R_OK | os.X_OK) and not os.access(path, os.W_OK):
            lost = "nothing is downloaded, and compiled kernels and stored responses are not kept"
            return Check("cache", "warning", f"{path} is read-only: {lost}")
        remedy = "set NIM_CACHE_PATH to a folder that this user can write to"
        return Check("cache", "failed", f"{path}: {error.strerror or error}; {remedy}")
    closed = sorted(folder.name for folder in path.iterdir() if not _may_write(folder))
    if closed:
        problem = (
            f"{path} is writable, but not its folders {', '.join(closed)}, which another user made"
        )
        remedy = f"`chmod -R g+w {path}` as their owner lets their group use them"
        return Check("cache", "warning", f"{problem}; {remedy}")
    return Check("cache", "ok", f"{path} is writable")


def _may_write(path: Path) -> bool:
    return not os.path.isdir(path) or os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def disk_free(path: Path) -> Check:
    existing = next(parent for parent in (path, *path.parents) if os.path.exists(parent))
    free = shutil.disk_usage(existing).free
    detail = f"{free / GB:.1f} GB free in {existing}"
    if free < MIN_FREE_BYTES:
        return Check(
            "disk", "warning", f"{detail}; free disk space, or set NIM_CACHE_PATH to another disk"
        )
    return Check("disk", "ok", detail)


def gpu_driver(hardware: Hardware) -> Check:
    if hardware.warnings:
        return Check("gpu", "warning", "; ".join(hardware.warnings))
    if not hardware.gpus:
        return Check("gpu", "ok", f"no GPU: {hardware.no_gpu_reason}")
    return Check("gpu", "ok", f"{hardware.summary}, driver {hardware.driver}")


def checkpoint(choose: Callable[[], tuple[Selection, Path]]) -> Check:
    """Check profile and files as a start would; files never checked before are read whole."""
    try:
        selection, folder = choose()
    except Exception as error:
        return Check("model", "failed", str(error))
    return Check("model", "ok", f"{selection.chosen.profile.name} with {folder}")


def auth_state(settings: Settings) -> Check:
    try:
        authenticator = authenticator_of(settings)
    except Exception as error:
        return Check("auth", "failed", str(error))
    if authenticator is not None:
        return Check("auth", "ok", "callers need a key, token or certificate")
    if is_loopback(settings.server_host):
        return Check("auth", "ok", f"open to this machine only ({settings.server_host})")
    if settings.auth == "off":
        detail = "NIM_AUTH=off: anyone who can reach the port may call; set NIM_API_KEYS_PATH"
        return Check("auth", "warning", detail)
    return Check("auth", "warning", "a key is generated at each start; set NIM_API_KEYS_PATH")


def tls_files(settings: Settings) -> Check:
    try:
        tls_of(settings)
    except AccessError as error:
        return Check("tls", "failed", str(error))
    return Check("tls", "ok", f"{settings.ssl_mode} with {settings.ssl_certs_path}")


def open_files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES:
        detail = f"at most {hard} open files; raise the limit to {MIN_OPEN_FILES} or more"
        return Check("files", "warning", detail)
    shown = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}"
    return Check("files", "ok", f"open files: {shown}")


def reachable(name: str, url: str, default_port: int) -> Check:
    """Check whether a server listens at a URL, whose password is not shown."""
    parts = urlsplit(url)
    where = f"{parts.hostname} port {parts.port or default_port}"
    try:
        address = (parts.hostname or "", parts.port or default_port)
        socket.create_connection(address, _CONNECT_S).close()
    except OSError as error:
        return Check(name, "warning", f"{where} does not respond: {error}")
    return Check(name, "ok", f"{where} answers")
