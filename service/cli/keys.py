"""`harmonium keys create | list | set | rotate | revoke`: API keys, of which only hashes are kept.

Exit codes: 0 done, 1 the records cannot be read or written, 2 bad arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import asdict, replace

from auth import audit
from auth.base import Scope, is_caller_id
from auth.key_folder import KeyFolder, KeyStoreError
from auth.key_record import KeyLimits, KeyRecord, digest, new_key, now, words_of
from engines.parts import facets
from service.settings.settings import Settings, load
from service.store.base import StoreError
from service.telemetry import logs

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class _Duration(click.ParamType[timedelta]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", str(value))
        if match is None:
            self.fail("a duration is a number and m, h or d, e.g. 90d", param, ctx)
        return timedelta(**{_UNITS[match[2]]: int(match[1])})


class _Scopes(click.ParamType[frozenset[Scope]]):
    name = "scopes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[Scope]:
        try:
            return frozenset(Scope(name) for name in _names(str(value)))
        except ValueError as error:
            self.fail(f"{error}; the scopes are {', '.join(Scope)}", param, ctx)


class _Limit(click.ParamType[int]):
    """A number of at least one; where a limit can be removed, also `none`, which is 0."""

    name = "limit"

    def __init__(self, *, may_be_none: bool) -> None:
        self._may_be_none = may_be_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if self._may_be_none and str(value) == "none":
            return 0
        if not re.fullmatch(r"[1-9][0-9]{0,17}", str(value)):
            more = ", or none, which removes the limit" if self._may_be_none else ""
            self.fail(f"{value!r} is not a number of at least 1{more}", param, ctx)
        return int(value)


_LIMITS = {
    "requests_per_min": "Limit: requests per minute.",
    "tokens_per_min": "Limit: tokens per minute.",
    "max_concurrent": "Limit: concurrent requests.",
}


def _limit_flags(*, may_be_none: bool = False) -> Callable[[Any], Any]:
    limit, shown = _Limit(may_be_none=may_be_none), "N|none" if may_be_none else "N"
    texts = _LIMITS | {"budget_tokens": "Limit: tokens in a day or month (UTC)."}
    period = click.option(
        "--budget-period",
        type=click.Choice(["day", "month"]),
        default="month",
        help="Of the budget. Default: month.",
    )
    of_limits = [
        click.option("--" + field.replace("_", "-"), field, type=limit, metavar=shown, help=text)
        for field, text in texts.items()
    ]

    def add(function: Any) -> Any:
        for option in reversed([*of_limits, period]):
            function = option(function)
        return function

    return add


def _given(limits: dict[str, Any]) -> dict[str, int]:
    """The limits that were given, as a record has them."""
    period = limits.pop("budget_period")
    limits[f"tokens_per_{period}"] = limits.pop("budget_tokens")
    return {name: value for name, value in limits.items() if value is not None}


class KeyUses:
    """KEY_USES of parts/<name>/key_uses.py: when keys were used last; by default unknown."""

    def of(self, settings: Settings) -> dict[str, datetime]:
        """By the id of a key; raises StoreError."""
        return {}


class _Keys(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except msgspec.ValidationError as error:
            raise click.ClickException(words_of(error)) from error
        except KeyStoreError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Keys)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="The key file or folder. Default: NIM_API_KEYS_PATH.",
)
@click.pass_context
def keys(ctx: click.Context, path: Path | None) -> None:
    """Create, list and revoke API keys. Only hashes are stored."""
    ctx.obj = path


def _with_folder(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the keys' folder; --path may stand before its name or behind it."""

    @click.option(
        "--path",
        type=click.Path(path_type=Path),
        help="The key file or folder; may also precede the command.",
    )
    @click.pass_obj
    @wraps(function)
    def command(before: Path | None, /, path: Path | None, **arguments: Any) -> None:
        settings = load()
        logs.configure(settings.log_level, settings.jsonl_logging)
        path = path or before or settings.api_keys_path
        if path is None:
            raise click.UsageError("Set --path or NIM_API_KEYS_PATH.")
        function(KeyFolder(path), **arguments)

    return command


@keys.command()
@click.argument("name")
@click.option("--expires-in", type=_Duration(), metavar="90d", help="E.g. 12h or 90d.")
@click.option(
    "--scopes", type=_Scopes(), help=f"One or more of {','.join(Scope)}; default: inference,models."
)
@click.option("--models", metavar="A,B", help="Only these models.")
@click.option("--tenant", help="Keys of one tenant share cached prompts.")
@_limit_flags()
@_with_folder
def create(
    folder: KeyFolder,
    /,
    name: str,
    expires_in: timedelta | None,
    scopes: frozenset[Scope] | None,
    models: str | None,
    tenant: str | None,
    **limits: Any,
) -> None:
    """Create a key and print it, once."""
    if tenant is not None and is_caller_id(tenant):
        raise click.UsageError(f"--tenant {tenant} looks like a caller's id; use another name.")
    key, id = new_key()
    created_at = now()
    fields = {
        "id": id,
        "name": name,
        "sha256": digest(key).hex(),
        "created_at": created_at,
        "expires_at": created_at + expires_in if expires_in else None,
        "models": _names(models) if models else None,
        "tenant": tenant,
        "limits": _given(limits) or None,
    }
    if scopes:
        fields["scopes"] = scopes
    record = msgspec.convert(fields, KeyRecord)  # click checks types, this checks values
    folder.add(record)
    _audit("key.created", record)
    click.echo(key)


@keys.command("list")
@click.option("--json", "is_json", is_flag=True, help="Machine-readable output.")
@_with_folder
def list_(folder: KeyFolder, /, is_json: bool) -> None:
    """List key IDs (secrets are not stored)."""
    records = sorted(folder.read().values(), key=lambda record: record.created_at)
    uses = _uses()
    if is_json:
        shown = [_shown(record) | {"last_used_at": uses.get(record.id)} for record in records]
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
        return
    for record in records:
        expires = record.expires_at or "never"
        scopes = ",".join(sorted(record.scopes))
        state = record.state(now())
        used = f"  last used {uses.get(record.id, 'never')}" if uses else ""
        click.echo(f"{record.id}  {state:7}  expires {expires}{used}  {scopes}  {record.name}")


def _uses() -> dict[str, datetime]:
    settings, found = load(), dict[str, datetime]()
    for uses in facets("key_uses", KeyUses).values():
        try:
            found |= uses.of(settings)
        except StoreError as error:
            click.echo(f"The last use of keys is unknown: {error}", err=True)
    return found


@keys.command()
@click.argument("id")
@_with_folder
def revoke(folder: KeyFolder, /, id: str) -> None:
    """Revoke a key; running servers stop accepting it within a second."""
    record = _found(folder, id)
    if record.revoked_at is None:
        folder.replace(replace(record, revoked_at=now()))
        _audit("key.revoked", record)


@keys.command("set")
@click.argument("id")
@_limit_flags(may_be_none=True)
@_with_folder
def set_(folder: KeyFolder, /, id: str, **limits: Any) -> None:
    """Change a key's limits, or remove them with `none`; running servers take them within a
    second."""
    given = _given(limits)
    if not given:
        raise click.UsageError("Name a limit, e.g. --tokens-per-min 100000.")
    record = _found(folder, id)
    changed = asdict(record.limits or KeyLimits()) | given
    left = {name: limit for name, limit in changed.items() if limit}
    record = replace(record, limits=msgspec.convert(left, KeyLimits) if left else None)
    folder.replace(record)
    _audit("key.changed", record)


@keys.command()
@click.argument("id")
@click.option(
    "--overlap", type=_Duration(), required=True, metavar="7d", help="The old key works so long."
)
@_with_folder
def rotate(folder: KeyFolder, /, id: str, overlap: timedelta) -> None:
    """Print a new key with the same rights and tenant; the old one expires after the overlap."""
    record, at = _found(folder, id), now()
    if (state := record.state(at)) != "active":
        raise KeyStoreError(
            f"the key {id} is {state}; create another with `harmonium keys create`."
        )
    key, new_id = new_key()
    lasts = record.expires_at - record.created_at if record.expires_at else None
    new = replace(
        record,
        id=new_id,
        sha256=digest(key).hex(),
        created_at=at,
        expires_at=at + lasts if lasts else None,
        tenant=record.principal().tenant_id,
        replaces=record.replaces or record.id,  # both use one budget
    )
    ends_at = at + overlap
    ends_at = min(ends_at, record.expires_at) if record.expires_at else ends_at
    folder.add(new)
    _audit("key.created", new)
    click.echo(key)  # before the rest can fail: nothing else has it
    folder.replace(replace(record, expires_at=ends_at))
    _audit("key.changed", record)


def _found(folder: KeyFolder, id: str) -> KeyRecord:
    record = folder.read().get(id)
    if record is None:
        raise KeyStoreError(f"there is no key {id!r}; `harmonium keys list` shows the ids.")
    return record


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _shown(record: KeyRecord) -> dict[str, object]:
    """Return a record as it is listed: without its hash, and with its state."""
    fields = asdict(record) | {"state": record.state(now())}
    del fields["sha256"]
    return fields


def _audit(event: str, record: KeyRecord) -> None:
    audit.write(
        event,
        key=record.id,
        name=record.name,
        tenant=record.tenant,
        scopes=",".join(sorted(record.scopes)),
        expires_at=record.expires_at,
        by_uid=os.getuid(),
    )
