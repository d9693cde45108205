"""Who is asking: the contract of every authenticator. No HTTP here.

AuthError
├── MissingCredentials   the caller presented nothing that any authenticator recognises
├── InvalidCredentials   the caller presented something that is wrong
├── Forbidden            the caller is known and may not do this
└── KeysUnavailable      it cannot be decided now: this is our failure, not the caller's

Their words are for the audit log: clients are not told, so that they do not learn which
part of a forgery was wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol


class AccessError(Exception):
    """What callers are known by cannot be used as configured; the message names the remedy."""


class AuthError(Exception):
    """The root of all refusals."""


class MissingCredentials(AuthError):
    """The caller presented nothing that any authenticator recognises."""


class InvalidCredentials(AuthError):
    """The caller presented credentials that are wrong."""


class ForeignSignature(InvalidCredentials):
    """The token was not signed with the key that it names; its issuer may have replaced that."""


class Forbidden(AuthError):
    """The caller is known and may not do this."""


class KeysUnavailable(AuthError):
    """The keys of tokens cannot be had now: this is our failure, not the caller's."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the caller presented; `scheme` is lower-case, e.g. "bearer" or "x-api-key"."""

    scheme: str
    value: str

    @property
    def is_token(self) -> bool:
        """Whether it looks like a signed JWT: three parts, the first the start of a JSON object."""
        return self.value.startswith("ey") and self.value.count(".") == 2


class Scope(StrEnum):
    """What a caller may do; each route asks for one, and `priority` is to be served first."""

    INFERENCE = "inference"
    MODELS = "models"
    METRICS = "metrics"
    BATCH = "batch"
    PRIORITY = "priority"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """What one principal may use; None: the server's own limit."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    max_concurrent: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None


_CALLER_ID: Final = re.compile(r"(key|jwt|cert)-[0-9a-f]+")


def is_caller_id(name: str) -> bool:
    """Whether a tenant's name is spelled like the id of a caller, whose own tenant that is."""
    return _CALLER_ID.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who the caller is; `id` and `tenant_id` are safe to log."""

    id: str
    tenant_id: str = ""  # principals of one tenant share cached prefixes; empty: the common tenant
    scopes: frozenset[str] = frozenset(Scope)
    models: tuple[str, ...] | None = None  # the ids it may use; None: all
    limits: PrincipalLimits | None = None
    account: str = (
        ""  # whose budgets it uses: of the first of keys that were rotated; empty: its own
    )


class Authenticator(Protocol):
    """One way to recognise a caller."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return who it is, None when this is not one's to judge, or raise AuthError."""
