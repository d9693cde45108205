"""What of a token is read before anything of it is believed: its shape and its header."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

import msgspec

from auth.base import InvalidCredentials

MAX_TOKEN_BYTES = 8192
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_CHANGING = frozenset({"crit", "b64", "zip"})
_PART = re.compile(r"[A-Za-z0-9_-]+")
_KID = re.compile(r"[\x21-\x7e]{1,256}")


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """The parts of a header that we use; nothing else of it has any effect."""

    alg: str
    kid: str | None


def is_token(text: str) -> bool:
    """Whether it looks like a signed JWT: three parts, the first the start of a JSON object."""
    return text.startswith("ey") and text.count(".") == 2


def read_header(token: str) -> TokenHeader:
    """The header of a token; raises InvalidCredentials for what we would never accept.

    Refused: more than 8 KiB, other than three parts (a JWE has five), a type that is no JWT, and
    what would change how the rest is to be read, all of which python-jose ignores.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidCredentials("token: too long")
    parts = token.split(".")
    if len(parts) != 3 or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidCredentials("token: not three parts of base64url")
    return _checked(_decoded(parts[0]))


def _decoded(part: str) -> dict[str, object]:
    try:
        text = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(text, type=dict[str, object])
    except (binascii.Error, ValueError, RecursionError, msgspec.DecodeError):
        raise InvalidCredentials("token: unreadable header") from None


def _checked(header: dict[str, object]) -> TokenHeader:
    alg, kid, kind = header.get("alg"), header.get("kid"), header.get("typ")
    if _CHANGING & header.keys():
        raise InvalidCredentials("token: critical extensions")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise InvalidCredentials("token: type")
    if not isinstance(alg, str):
        raise InvalidCredentials("token: algorithm")
    if "kid" not in header:
        return TokenHeader(alg, None)
    if not isinstance(kid, str) or not _KID.fullmatch(kid):
        raise InvalidCredentials("token: key id")
    return TokenHeader(alg, kid)
