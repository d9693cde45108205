"""Callers with a JWT from an identity provider."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from auth import audit
from auth.base import (
    Credentials,
    ForeignSignature,
    InvalidCredentials,
    Principal,
    Scope,
    is_caller_id,
)
from parts.jwt.key_source import KeySource
from parts.jwt.verify import TokenPolicy, read_header, verify

_MAX_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Where a token says what its bearer may do."""

    scope_prefix: str = ""  # before the names of scopes, e.g. "harmonium."
    scopes: str | None = None  # None: `scope` and `scp`
    granted: frozenset[Scope] = frozenset()  # what every token may do, whatever it says
    tenant: str | None = None  # None: every subject is a tenant of its own
    models: str | None = None  # None: all models


class JwtBearer:
    """Accepts the tokens of one issuer."""

    def __init__(
        self, keys: KeySource, policy: TokenPolicy, names: ClaimNames | None = None
    ) -> None:
        self._keys = keys
        self._policy = policy
        self._names = names or ClaimNames()
        self._known: OrderedDict[str, None] = OrderedDict()

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return the principal that a token names, None for what is no token; raises AuthError."""
        if credentials.scheme != "bearer" or not credentials.is_token:
            return None
        header = read_header(credentials.value)
        key = await self._keys.key(header.kid)
        try:
            claims = verify(credentials.value, header, key, self._policy)
        except ForeignSignature as error:
            newer = await self._keys.newer(header.kid, key)  # a key may be replaced under its id
            if newer is None:
                raise InvalidCredentials(str(error)) from None
            claims = verify(credentials.value, header, newer, self._policy)
        principal = self._principal(claims)
        self._introduce(principal.id, claims)
        return principal

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = f"{claims['iss']}\n{claims['sub']}".encode("utf-8", "surrogatepass")
        id = f"jwt-{hashlib.sha256(subject).hexdigest()[:16]}"
        models = claims.get(self._names.models, []) if self._names.models else None
        return Principal(
            id=id,
            tenant_id=self._tenant(claims) or id,
            scopes=self._scopes(claims),
            models=None if models is None else tuple(_texts(models)),
        )

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        tenant = claims.get(self._names.tenant, "") if self._names.tenant else ""
        if not isinstance(tenant, str) or len(tenant) > 128 or not tenant.isprintable():
            raise InvalidCredentials(f"token: its {self._names.tenant} is not a valid tenant name")
        if is_caller_id(tenant):
            raise InvalidCredentials(f"token: its {self._names.tenant} looks like a caller's id")
        return tenant

    def _scopes(self, claims: Mapping[str, Any]) -> frozenset[Scope]:
        """Return the scopes granted to all tokens, and those that this one names."""
        given = (self._names.scopes,) if self._names.scopes else ("scope", "scp")
        words = {word for claim in given for word in _texts(claims.get(claim, []))}
        prefix = self._names.scope_prefix
        named = frozenset(scope for scope in Scope if prefix + scope in words)
        return named | self._names.granted

    def _introduce(self, id: str, claims: Mapping[str, Any]) -> None:
        """Log once which person an id belongs to; other lines only have the id."""
        if id not in self._known:
            audit.write("token.subject", caller=id, subject=claims["sub"], issuer=claims["iss"])
        self._known[id] = None
        self._known.move_to_end(id)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
