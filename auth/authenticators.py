"""Authenticators without network access: fixed keys, a certificate TLS has verified, several in
turn."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Final

from auth.base import Authenticator, Credentials, InvalidCredentials, Principal, Scope
from auth.key_record import SCHEMES, digest

CERTIFICATE_SCHEME = "certificate"


class ApiKeys:
    """Accepts any of a fixed set of keys; each is a tenant of its own and may do everything."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(digest(key) for key in keys)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return the key's principal; every digest is compared, so timing tells nothing."""
        if credentials.scheme not in SCHEMES:
            return None
        presented = digest(credentials.value)
        matches = [hmac.compare_digest(presented, known) for known in self._digests]
        if not any(matches):
            raise InvalidCredentials("not one of the configured API keys")
        id = f"key-{presented.hex()[:8]}"
        return Principal(id=id, tenant_id=id)


# Without a grant.
_OF_CERTIFICATES: Final = frozenset(Scope) - {Scope.ADMIN, Scope.BATCH, Scope.PRIORITY}


class ClientCertificate:
    """Recognises callers by the name in their TLS certificate, which TLS has verified."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return the principal of that name: a tenant of its own that is not an administrator."""
        if credentials.scheme != CERTIFICATE_SCHEME:
            return None
        name = credentials.value.encode("utf-8", "surrogatepass")
        id = f"cert-{hashlib.sha256(name).hexdigest()[:16]}"
        return Principal(id, tenant_id=id, scopes=_OF_CERTIFICATES)


class Chain:
    """Asks several authenticators in turn; the first that knows the credentials decides."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return who it is; a key or token that no authenticator accepts is wrong, not absent."""
        for authenticator in self._authenticators:
            principal = await authenticator.authenticate(credentials)
            if principal is not None:
                return principal
        if credentials.scheme in SCHEMES:
            raise InvalidCredentials("neither a known key nor a valid token")
        return None
