"""`harmonium keys create | list | revoke`: API keys, of which only hashes are kept.

Exit codes: 0 done, 1 the records cannot be read or written, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from auth import audit
from auth.base import Scope
from auth.key_folder import KeyFolder, KeyStoreError
from auth.key_record import KeyLimits, KeyRecord, now
from auth.key_text import digest, new_key
from service.settings import Settings
from service.telemetry import logs

DONE, FAILED, BAD_ARGUMENTS = 0, 1, 2
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    parser.add_argument(
        "--path", type=Path, help="the file or folder of records; unset: NIM_API_KEYS_PATH"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it, this once")
    create.add_argument("name", help="whose key it is, for people")
    create.add_argument("--expires-in", type=_duration, metavar="90d", help="e.g. 12h or 90d")
    create.add_argument(
        "--scopes", type=_scopes, help=f"some of {','.join(Scope)}; default: inference,models"
    )
    create.add_argument("--models", type=_names, metavar="A,B", help="only these models")
    create.add_argument("--tenant", help="keys of one tenant share cached prompts")
    for field in KeyLimits.__struct_fields__:
        create.add_argument("--" + field.replace("_", "-"), type=int, metavar="N")
    listing = actions.add_parser("list", help="list the keys by id; the keys themselves are gone")
    listing.add_argument("--json", action="store_true", help="machine-readable output")
    revoke = actions.add_parser("revoke", help="end a key; running servers heed it in a second")
    revoke.add_argument("id", help="the id, which is the middle part of the key")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Do what was asked and return the exit code."""
    logs.configure(settings.log_level, settings.jsonl_logging)
    path = args.path or settings.api_keys_path
    if path is None:
        message = "say where the keys are kept: NIM_API_KEYS_PATH or --path"
        print(f"harmonium keys: {message}", file=sys.stderr)
        return BAD_ARGUMENTS
    try:
        return _ACTIONS[args.action](args, KeyFolder(path))
    except (KeyStoreError, msgspec.ValidationError) as error:
        print(f"harmonium keys: {error}", file=sys.stderr)
        return FAILED


def _create(args: argparse.Namespace, folder: KeyFolder) -> int:
    key, id = new_key()
    limits = {field: getattr(args, field) for field in KeyLimits.__struct_fields__}
    created_at = now()
    fields = {
        "id": id,
        "name": args.name,
        "sha256": digest(key).hex(),
        "created_at": created_at,
        "expires_at": created_at + args.expires_in if args.expires_in else None,
        "models": args.models,
        "tenant": args.tenant,
        "limits": limits if any(value is not None for value in limits.values()) else None,
    }
    if args.scopes:
        fields["scopes"] = args.scopes
    record = msgspec.convert(fields, KeyRecord)  # argparse checks types, this checks values
    folder.add(record)
    _audit("key.created", record)
    print(key)
    return DONE


def _list(args: argparse.Namespace, folder: KeyFolder) -> int:
    records = sorted(folder.read().values(), key=lambda record: record.created_at)
    if args.json:
        shown = [_shown(record) for record in records]
        print(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
        return DONE
    for record in records:
        expires = record.expires_at or "never"
        scopes = ",".join(sorted(record.scopes))
        state = record.state(now())
        print(f"{record.id}  {state:7}  expires {expires}  {scopes}  {record.name}")
    return DONE


def _revoke(args: argparse.Namespace, folder: KeyFolder) -> int:
    record = folder.read().get(args.id)
    if record is None:
        raise KeyStoreError(f"there is no key {args.id!r}; `harmonium keys list` has the ids.")
    if record.revoked_at is None:
        folder.replace(replace(record, revoked_at=now()))
        _audit("key.revoked", record)
    return DONE


_ACTIONS = {"create": _create, "list": _list, "revoke": _revoke}


def _shown(record: KeyRecord) -> dict[str, object]:
    """A record without its hash, and with its state."""
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


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError("a duration is a number and m, h or d, e.g. 90d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _scopes(text: str) -> frozenset[Scope]:
    try:
        return frozenset(Scope(name) for name in _names(text))
    except ValueError as error:
        message = f"{error}; the scopes are {', '.join(Scope)}"
        raise argparse.ArgumentTypeError(message) from None
