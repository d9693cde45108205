"""What a made key looks like, `hmk_<id>_<secret>`, and what is kept of it.

The id appears in clear wherever the key is mentioned; the secret is 256 random bits, so that a
single SHA-256 hides it: there is nothing to guess that a slow hash would protect.
A file of keys is `{"keys": [{...}, ...]}`.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from auth.base import Principal, PrincipalLimits, Scope

_ID = r"^[0-9a-f]{12}$"
_SHA256 = r"^[0-9a-f]{64}$"
Time = Annotated[datetime, Meta(tz=True)]
AtLeastOne = Annotated[int, Meta(ge=1)]
_LABEL = r"^[^\x00-\x1f\x7f]*$"  # control characters could forge log lines
Label = Annotated[str, Meta(min_length=1, max_length=128, pattern=_LABEL)]
_IN_WORDS = {
    _LABEL: "Expected text without control characters, such as line breaks and tabs",
    _ID: "Expected 12 digits of 0-9 and a-f",
    _SHA256: "Expected 64 digits of 0-9 and a-f",
}

SCHEMES = frozenset({"bearer", "x-api-key"})
PREFIX = "hmk"
_SHAPE = re.compile(rf"{PREFIX}_([0-9a-f]{{12}})_[A-Za-z0-9_-]{{43}}")


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the key may use; None: the server's own limit."""

    requests_per_min: AtLeastOne | None = None
    tokens_per_min: AtLeastOne | None = None
    max_concurrent: AtLeastOne | None = None
    tokens_per_day: AtLeastOne | None = None
    tokens_per_month: AtLeastOne | None = None


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key, without the key: only its SHA-256."""

    id: Annotated[str, Meta(pattern=_ID)]
    name: Label
    sha256: Annotated[str, Meta(pattern=_SHA256)]
    created_at: Time
    expires_at: Time | None = None
    revoked_at: Time | None = None
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE, Scope.MODELS})
    models: tuple[Label, ...] | None = None  # None: all
    tenant: Label | None = None  # None: a tenant of its own
    limits: KeyLimits | None = None
    replaces: Annotated[str, Meta(pattern=_ID)] | None = None  # the first of those it replaced

    def state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        is_expired = self.expires_at is not None and self.expires_at <= now
        return "expired" if is_expired else "active"

    def principal(self) -> Principal:
        id = f"key-{self.id}"
        limits = self.limits
        return Principal(
            id=id,
            tenant_id=self.tenant or id,
            scopes=self.scopes,
            models=self.models,
            limits=PrincipalLimits(**msgspec.structs.asdict(limits)) if limits else None,
            account=f"key-{self.replaces}" if self.replaces else "",
        )


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of keys."""

    keys: tuple[KeyRecord, ...] = ()

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2) + b"\n"


def decode(text: bytes) -> KeyFile:
    """Read a file's bytes; raises ValueError that names the field, never its value."""
    try:
        return msgspec.json.decode(text, type=KeyFile)
    except msgspec.DecodeError as error:
        raise ValueError(words_of(error)) from None


def words_of(error: msgspec.DecodeError) -> str:
    """What a record's fault is, and where: msgspec's words, but patterns as what they take."""
    words = str(error)
    for pattern, meant in _IN_WORDS.items():
        words = words.replace(f"Expected `str` matching regex {pattern!r}", meant)
    return words


def now() -> datetime:
    """The time in UTC, in whole seconds, as records have it."""
    return datetime.now(UTC).replace(microsecond=0)


def new_key() -> tuple[str, str]:
    id = secrets.token_hex(6)
    return f"{PREFIX}_{id}_{secrets.token_urlsafe(32)}", id


def key_id(key: str) -> str | None:
    """The id inside a key; None for text that is no key of this shape."""
    match = _SHAPE.fullmatch(key)
    return match.group(1) if match else None


def digest(key: str) -> bytes:
    """The SHA-256 of a key, 32 bytes: all that is kept of it."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
