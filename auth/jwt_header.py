"""What of a token is read before anything of it is believed: its shape and its header."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from auth.base import InvalidCredentials
from auth.base64url import decoded

MAX_TOKEN_BYTES = 8192
# RFC 7519 §5.1 makes `typ` optional; what is there must say that it is a JWT or an access token
# (RFC 9068), so that a token made for something else does not pass for one.
_TYPES = frozenset({"jwt", "application/jwt", "at+jwt", "application/at+jwt"})
_CHANGING = frozenset({"crit", "b64", "zip"})
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

    Refused: more than 8 KiB, other than three parts (a JWE has five) of canonical base64url, a
    type that is no JWT, and what would change how the rest is to be read, all of which python-jose
    ignores.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise InvalidCredentials(f"token: longer than {MAX_TOKEN_BYTES} bytes")
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        raise InvalidCredentials("token: not three parts")
    texts = []
    for name, part in zip(("header", "payload", "signature"), parts, strict=True):
        try:
            texts.append(decoded(part))
        except ValueError as error:
            raise InvalidCredentials(f"token: its {name} is {error}") from None
    return _checked(_json(texts[0]))


def _json(text: bytes) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (ValueError, RecursionError, msgspec.DecodeError):
        raise InvalidCredentials("token: its header is no JSON object") from None


def _checked(header: dict[str, object]) -> TokenHeader:
    alg, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if changing := sorted(_CHANGING & header.keys()):
        raise InvalidCredentials(f"token: its header has {', '.join(changing)}")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise InvalidCredentials(f"token: its typ is {kind!r}")
    if not isinstance(alg, str):
        raise InvalidCredentials(f"token: its alg is {alg!r}")
    if "kid" not in header:
        return TokenHeader(alg, None)
    if not isinstance(kid, str) or not _KID.fullmatch(kid):
        raise InvalidCredentials("token: its kid is not 1 to 256 printable characters")
    return TokenHeader(alg, kid)
