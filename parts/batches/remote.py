"""A batch at a server, by HTTP: sent, waited for, its results written."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

import click
import httpx2

from service.cli.server_flags import refusal, unreachable

_LOOK_S: Final = 1.0
_CONNECT_S, _SILENCE_S = 5.0, 300.0
_ENDED: Final = ("completed", "failed", "expired", "cancelled")


class _Refused(click.ClickException):
    """The server's error, or why there is none."""


def run(base: str, key: str | None, source: Path | None, batch_id: str | None, target: Path) -> int:
    """Run a file of requests, or wait for a batch; 0 when all its requests were answered."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S)
    with httpx2.Client(base_url=base, headers=headers, timeout=timeout) as http:
        try:
            id = batch_id or _begun(http, source)
            return _written(http, _ended(http, id), target)
        except httpx2.HTTPError as error:
            raise _Refused(unreachable(base, error)) from None


def _begun(http: httpx2.Client, source: Path | None) -> str:
    """Upload the file and create the batch; returns its id."""
    assert source is not None
    try:
        with source.open("rb") as file:
            endpoint = _endpoint(source, file.readline())
            file.seek(0)
            form = {"purpose": "batch"}
            uploaded = http.post("/v1/files", files={"file": (source.name, file)}, data=form)
    except OSError as error:
        raise _Refused(f"{source} cannot be read: {error.strerror}.") from None
    body = {
        "input_file_id": _json(uploaded)["id"],
        "endpoint": endpoint,
        "completion_window": "24h",
    }
    id = str(_json(http.post("/v1/batches", json=body))["id"])
    click.echo(f"{id} has begun. `--batch {id}` waits for it again.", err=True)
    return id


def _endpoint(source: Path, line: bytes) -> str:
    try:
        return str(json.loads(line)["url"])
    except (ValueError, LookupError, TypeError):
        raise _Refused(f"{source}: the first line is no request with a url.") from None


def _ended(http: httpx2.Client, id: str) -> dict[str, Any]:
    """The batch when it has ended; says how far it is meanwhile."""
    shown = ""
    while True:
        batch = _looked_at(http, id)
        counts = batch["request_counts"]
        now = f"{batch['status']}: {counts['completed']} of {counts['total']}"
        if counts["failed"]:
            now += f", {counts['failed']} failed"
        if now != shown and (sys.stderr.isatty() or batch["status"] in _ENDED):
            click.echo(f"\r{now:60}", err=True, nl=batch["status"] in _ENDED)
            shown = now
        if batch["status"] in _ENDED:
            return batch
        time.sleep(_LOOK_S)


def _looked_at(http: httpx2.Client, id: str) -> dict[str, Any]:
    """The batch as it is; a server that is started again is waited for."""
    for _ in range(60):
        try:
            answer = http.get(f"/v1/batches/{id}")
            if answer.status_code not in (429, 503):
                return _json(answer)
        except httpx2.TransportError:
            pass
        time.sleep(_LOOK_S)
    return _json(http.get(f"/v1/batches/{id}"))


def _written(http: httpx2.Client, batch: dict[str, Any], target: Path) -> int:
    for fault in (batch["errors"] or {"data": []})["data"]:
        line = "" if fault["line"] is None else f"line {fault['line']}: "
        click.echo(f"{line}{fault['message']}", err=True)
    ids = [batch[name] for name in ("output_file_id", "error_file_id") if batch[name]]
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            for id in ids:
                with http.stream("GET", f"/v1/files/{id}/content") as answer:
                    if answer.is_error:
                        answer.read()
                        _json(answer)
                    for piece in answer.iter_bytes():
                        file.write(piece)
        part.replace(target)
    except OSError as error:
        raise _Refused(f"{target} cannot be written: {error.strerror}.") from None
    counts = batch["request_counts"]
    is_whole = batch["status"] == "completed" and counts["completed"] == counts["total"]
    return 0 if is_whole else 1


def _json(answer: httpx2.Response) -> dict[str, Any]:
    if answer.is_success:
        found: dict[str, Any] = answer.json()
        return found
    raise _Refused(refusal(answer))
