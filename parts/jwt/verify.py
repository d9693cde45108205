"""The one place where a token becomes claims that are believed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from jose import jws

from auth.base import ForeignSignature, InvalidCredentials
from parts.jwt import pss
from parts.jwt.jwk import PublicKey, decoded

MAX_TOKEN_BYTES = 8192
# RFC 7519 §5.1 makes `typ` optional; what is there must say that it is a JWT or an access token
# (RFC 9068), so that a token made for something else does not pass for one.
_TYPES = frozenset({"jwt", "application/jwt", "at+jwt", "application/at+jwt"})
_CHANGING = frozenset({"crit", "b64", "zip"})
_KID = re.compile(r"[\x21-\x7e]{1,256}")

LEEWAY_S = 30

pss.register()


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """The parts of a header that we use; nothing else of it has any effect."""

    alg: str
    kid: str | None


def read_header(token: str) -> TokenHeader:
    """Read the header of a token; raises InvalidCredentials for what we would never accept.

    Refused: more than 8 KiB, other than three parts (a JWE has five) of canonical base64url, a
    type that is not a JWT, and what would change how the rest is to be read. python-jose ignores
    all of these.
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
        raise InvalidCredentials("token: its header is not a JSON object") from None


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


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """Whose tokens count, and for how long at most."""

    issuer: str
    audience: str
    max_lifetime_s: float = 24 * 3600.0
    audience_claim: str | None = None  # names the audience of tokens that have no `aud`


def verify(
    token: str, header: TokenHeader, key: PublicKey, policy: TokenPolicy
) -> Mapping[str, Any]:
    """Return the claims of a token that is genuine, ours and of now; raises InvalidCredentials.

    python-jose checks the signature. What else it lets through (docs/security.md) is refused
    before it, by `read_header` and `keys_of`, or after it, here.
    """
    claims = _signed_claims(token, header, key)
    if claims.get("iss") != policy.issuer:
        raise InvalidCredentials(f"token: its iss is {_shown(claims, 'iss')}")
    _check_audience(claims, policy)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject:
        raise InvalidCredentials(f"token: its sub is {_shown(claims, 'sub')}")
    _check_times(claims, policy.max_lifetime_s, time.time())
    return claims


def _signed_claims(token: str, header: TokenHeader, key: PublicKey) -> dict[str, Any]:
    if header.alg not in key.algorithms:
        takes = ", ".join(key.algorithms)
        raise ForeignSignature(f"token: its alg is {header.alg!r}, the key's is {takes}")
    try:
        payload = jws.verify(token, dict(key.jwk), algorithms=[header.alg])
    except Exception:  # whatever a forgery provokes in the library, it is a refusal
        raise ForeignSignature("token: the signature does not match the key") from None
    try:
        return msgspec.json.decode(payload, type=dict[str, Any])
    except (ValueError, RecursionError, msgspec.DecodeError):
        raise InvalidCredentials("token: its payload is not a JSON object") from None


def _check_audience(claims: Mapping[str, Any], policy: TokenPolicy) -> None:
    """Raise unless `aud` names us, or the policy's claim does in a token without `aud`."""
    name = "aud"
    if "aud" not in claims and policy.audience_claim is not None:
        name = policy.audience_claim
    given = claims.get(name)
    audiences = given if isinstance(given, list) else [given]
    is_text = all(isinstance(audience, str) for audience in audiences)
    if not is_text or policy.audience not in audiences:
        raise InvalidCredentials(f"token: its {name} is {_shown(claims, name)}")


def _check_times(claims: Mapping[str, Any], max_lifetime_s: float, now_s: float) -> None:
    """RFC 7519 §4.1: `exp` is required here, `nbf` and `iat` are optional; all are numbers."""
    for name in ("exp", "nbf", "iat"):
        if not _is_number(claims.get(name, None if name == "exp" else 0)):
            raise InvalidCredentials(f"token: its {name} is {_shown(claims, name)}")
    exp = math.floor(claims["exp"])  # as other libraries cut it, so that none is stricter
    if exp <= now_s - LEEWAY_S:
        raise InvalidCredentials(f"token: expired {now_s - exp:.0f} s ago")
    for name in ("nbf", "iat"):
        if (ahead_s := claims.get(name, 0) - now_s) > LEEWAY_S:
            raise InvalidCredentials(f"token: its {name} is {ahead_s:.0f} s in the future")
    lifetime_s = exp - claims.get("iat", claims.get("nbf", now_s - LEEWAY_S))
    if not 0 < lifetime_s <= max_lifetime_s:
        raise InvalidCredentials(
            f"token: a lifetime of {lifetime_s:.0f} s, at most {max_lifetime_s:.0f} s may be"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(claims: Mapping[str, Any], name: str) -> str:
    return repr(claims[name])[:100] if name in claims else "missing"
