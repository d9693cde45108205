"""Who is asking: the contract of every authenticator. No HTTP here.

AuthError
├── MissingCredentials   the caller presented nothing that any authenticator recognises
└── InvalidCredentials   the caller presented something that is wrong
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class AuthError(Exception):
    """The root of all refusals."""


class MissingCredentials(AuthError):
    """The caller presented nothing that any authenticator recognises."""


class InvalidCredentials(AuthError):
    """The caller presented credentials that are wrong."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the caller presented; `scheme` is lower-case, e.g. "bearer" or "x-api-key"."""

    scheme: str
    value: str


@dataclass(frozen=True, slots=True)
class Principal:
    """Who the caller is; `id` is safe to log."""

    id: str


class Authenticator(Protocol):
    """One way to recognise a caller."""

    def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return who it is, None when the scheme is not this one's, or raise AuthError."""
        ...
