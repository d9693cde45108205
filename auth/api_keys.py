"""Static API keys, kept only as SHA-256 digests."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from auth.base import Credentials, InvalidCredentials, Principal

SCHEMES = frozenset({"bearer", "x-api-key"})


class ApiKeys:
    """Accepts any of a fixed set of keys."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def authenticate(self, credentials: Credentials) -> Principal | None:
        """Return the key's principal; every digest is compared, so timing tells nothing."""
        if credentials.scheme not in SCHEMES:
            return None
        presented = _digest(credentials.value)
        matches = [hmac.compare_digest(presented, digest) for digest in self._digests]
        if not any(matches):
            raise InvalidCredentials("The API key is not one of this server's keys.")
        return Principal(id=f"key-{presented.hex()[:8]}")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
