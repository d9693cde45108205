"""Public keys that may verify tokens: RSA for RS256 and P-256 for ES256, nothing else.

A key is always handed to python-jose as one JWK of known kind, never as PEM or DER bytes, which
it would take for an HMAC secret, and never as a set, all of which it would try.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from auth.base import AccessError

_ALGORITHMS = {"RSA": "RS256", "EC": "ES256"}
_PUBLIC = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}
_RSA_CHARS = range(2048 // 6, 8192 // 6 + 4)  # of base64: 2,048 to 8,192 bits


class PublicKeyError(AccessError):
    """A key file that cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key and the one algorithm it is used with."""

    jwk: Mapping[str, str]
    algorithm: str


def keys_of(document: object) -> dict[str, PublicKey]:
    """The usable keys of a JWKS by their ids.

    Left out: symmetric keys, keys for other uses or algorithms, keys without an id, and ids that
    several keys claim. Raises ValueError for what is no JWKS.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JSON Web Key Set")
    ids = [entry.get("kid") for entry in entries if isinstance(entry, dict)]
    found = {}
    for entry in entries:
        key = _usable(entry) if isinstance(entry, dict) else None
        if key is not None and ids.count(entry["kid"]) == 1:
            found[entry["kid"]] = key
    return found


def _usable(entry: Mapping[str, object]) -> PublicKey | None:
    kind = entry.get("kty")
    if not isinstance(kind, str) or kind not in _ALGORITHMS:
        return None
    algorithm = _ALGORITHMS[kind]
    is_fit = entry.get("use") == "sig" and entry.get("alg", algorithm) == algorithm
    # A private part that was published by mistake goes no further.
    jwk = {name: entry.get(name) for name in _PUBLIC[kind]}
    texts = {name: value for name, value in jwk.items() if isinstance(value, str) and value}
    has_id = isinstance(entry.get("kid"), str) and bool(entry["kid"])
    if not is_fit or not has_id or len(texts) != len(jwk) or not _is_strong(texts):
        return None
    return PublicKey(texts, algorithm)


def _is_strong(jwk: Mapping[str, str]) -> bool:
    if jwk["kty"] == "EC":
        return jwk["crv"] == "P-256"
    return len(jwk["n"]) in _RSA_CHARS


def read_public_key(path: Path) -> PublicKey:
    """The key in a PEM file; raises PublicKeyError."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise PublicKeyError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise PublicKeyError(f"{path} is no public key in PEM form.") from None
    if isinstance(key, RSAPublicKey) and 2048 <= key.key_size <= 8192:
        rsa = key.public_numbers()
        return PublicKey({"kty": "RSA", "n": _base64(rsa.n), "e": _base64(rsa.e)}, "RS256")
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        point = key.public_numbers()
        x, y = _base64(point.x, 32), _base64(point.y, 32)
        return PublicKey({"kty": "EC", "crv": "P-256", "x": x, "y": y}, "ES256")
    raise PublicKeyError(f"{path} must hold an RSA key of 2,048 to 8,192 bits, or one on P-256.")


def _base64(number: int, num_bytes: int = 0) -> str:
    data = number.to_bytes(num_bytes or (number.bit_length() + 7) // 8, "big")
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
