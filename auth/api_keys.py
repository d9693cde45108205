"""Static API keys, kept only as SHA-256 digests."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from auth.base import Credentials, InvalidCredentials, Principal
from auth.key_record import SCHEMES, digest


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
