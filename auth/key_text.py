"""What a made key looks like: `hmk_<id>_<secret>`.

The id stands in clear wherever the key is spoken of; the secret is 256 random bits, so that a
single SHA-256 hides it: there is nothing to guess that a slow hash would protect.
"""

from __future__ import annotations

import hashlib
import re
import secrets

SCHEMES = frozenset({"bearer", "x-api-key"})
PREFIX = "hmk"
_SHAPE = re.compile(rf"{PREFIX}_([0-9a-f]{{12}})_[A-Za-z0-9_-]{{43}}")


def new_key() -> tuple[str, str]:
    """A fresh key and its id."""
    id = secrets.token_hex(6)
    return f"{PREFIX}_{id}_{secrets.token_urlsafe(32)}", id


def key_id(key: str) -> str | None:
    """The id inside a key; None for text that is no key of this shape."""
    match = _SHAPE.fullmatch(key)
    return match.group(1) if match else None


def digest(key: str) -> bytes:
    """What is kept of a key: 32 bytes."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
