"""Callers that a TLS certificate names, which the TLS library has verified."""

from __future__ import annotations

import hashlib

from auth.base import Credentials, Principal, Scope

SCHEME = "certificate"


class ClientCertificate:
    """Takes the name in a verified certificate for its bearer's."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return the principal of that name: a tenant of its own that is no administrator."""
        if credentials.scheme != SCHEME:
            return None
        name = credentials.value.encode("utf-8", "surrogatepass")
        id = f"cert-{hashlib.sha256(name).hexdigest()[:16]}"
        return Principal(id, tenant_id=id, scopes=frozenset(Scope) - {Scope.ADMIN})
