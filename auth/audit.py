"""Audit lines about keys and decisions: who, what and why; never a credential.

Each record carries its fields as `audit` for formatters that write objects.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auth.key_record import KeyRecord

log = logging.getLogger("harmonium.audit")

_PLAIN = re.compile(r"[A-Za-z0-9._:/@+,-]+")


def write(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Write one audit line: the event, then `name=value` for each field that has a value."""
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    text = "".join(f" {name}={_printable(value)}" for name, value in given.items())
    log.log(level, "%s%s", event, text, extra={"audit": {"event": event, **given}, "brief": event})


def keys_changed(before: Mapping[str, KeyRecord], after: Mapping[str, KeyRecord]) -> None:
    """Write one audit line for each key that came, went or changed."""
    for id in sorted(before.keys() | after.keys()):
        old, new = before.get(id), after.get(id)
        if new is None:
            write("key.removed", key=id)
        elif old is None:
            write("key.loaded", key=id, name=new.name, revoked_at=new.revoked_at)
        elif old != new:
            write("key.changed", key=id, name=new.name, revoked_at=new.revoked_at)


def _printable(value: object) -> str:
    """Return a value as text that can neither end the line nor pass for another field."""
    text = str(value)[:200]
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
