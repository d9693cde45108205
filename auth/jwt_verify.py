"""The one place where a token becomes claims that are believed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jose import jwt

from auth.base import InvalidCredentials
from auth.jwk import PublicKey
from auth.jwt_header import TokenHeader

LEEWAY_S = 30


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """Whose tokens count, and for how long at most."""

    issuer: str
    audience: str
    max_lifetime_s: float = 24 * 3600.0


# `at_hash` speaks of another token, which we do not have.
_OPTIONS = {
    **{f"require_{claim}": True for claim in ("exp", "iat", "aud", "iss", "sub")},
    "verify_at_hash": False,
    "leeway": LEEWAY_S,
}


def verify(
    token: str, header: TokenHeader, key: PublicKey, policy: TokenPolicy
) -> Mapping[str, Any]:
    """The claims of a token that is genuine, ours and of now; raises InvalidCredentials.

    python-jose checks the signature and the claims; what it lets through (docs/security.md) is
    refused before it, by `read_header` and `keys_of`, or after it, here.
    """
    if header.alg != key.algorithm:
        raise InvalidCredentials("token: algorithm")
    try:
        claims = jwt.decode(
            token,
            dict(key.jwk),
            algorithms=[key.algorithm],
            audience=policy.audience,
            issuer=policy.issuer,
            options=_OPTIONS,
        )
    except Exception as error:  # whatever a forgery provokes in the library, it is a refusal
        raise InvalidCredentials(f"token: {type(error).__name__}") from None
    _check_times(claims, policy.max_lifetime_s, time.time())
    if claims["iss"] != policy.issuer or not isinstance(claims["sub"], str) or not claims["sub"]:
        raise InvalidCredentials("token: issuer or subject")
    return claims


def _check_times(claims: Mapping[str, Any], max_lifetime_s: float, now_s: float) -> None:
    """Numbers and nothing that python-jose would turn into one; none from the future."""
    times = [claims[name] for name in ("exp", "iat", "nbf") if name in claims]
    if not all(_is_number(value) for value in times):
        raise InvalidCredentials("token: a time that is no number")
    exp, iat, nbf = claims["exp"], claims["iat"], claims.get("nbf", 0)
    if max(iat, nbf) > now_s + LEEWAY_S or exp <= now_s - LEEWAY_S:
        raise InvalidCredentials("token: not valid now")
    if not 0 < exp - iat <= max_lifetime_s:
        raise InvalidCredentials("token: lifetime")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
