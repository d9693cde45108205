"""Public keys that may verify tokens: RSA keys and those on NIST's curves, never a shared secret.

A key is always handed to python-jose as one JWK of known kind, never as PEM or DER bytes, which
it would take for an HMAC secret, and never as a set, all of which it would try.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from auth.base import AccessError

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_RSA_BITS = range(2048, 8192 + 1)
_CURVES: dict[str, tuple[str, ec.EllipticCurve]] = {
    "P-256": ("ES256", ec.SECP256R1()),
    "P-384": ("ES384", ec.SECP384R1()),
    "P-521": ("ES512", ec.SECP521R1()),
}


class PublicKeyError(AccessError):
    """A key file that cannot be used; the message names it and the remedy."""


class _Unfit(ValueError):
    """Why a key of a key set verifies no tokens."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key and the algorithms it may be used with: all of its kind, unless it names one."""

    jwk: Mapping[str, str]
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of a JWKS by their ids, and why others of it are not used."""

    keys: Mapping[str, PublicKey]
    unfit: Mapping[str, str] = field(default_factory=dict)


def keys_of(document: object) -> KeySet:
    """Read a JWKS (RFC 7517); raises ValueError for what is none.

    Unfit are symmetric and weak keys, keys for other uses or algorithms, and ids that several
    keys claim. A key without an id is skipped: no token could name it.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("not a JSON Web Key Set")
    named = [entry for entry in entries if isinstance(entry, dict) and _id_of(entry)]
    ids = [_id_of(entry) for entry in named]
    keys: dict[str, PublicKey] = {}
    unfit: dict[str, str] = {}
    for id, entry in zip(ids, named, strict=True):
        try:
            if ids.count(id) > 1:
                raise _Unfit("several keys have this id")
            keys[id] = _key_of(entry)
        except ValueError as error:
            unfit[id] = str(error)
    return KeySet(keys, unfit)


def _id_of(entry: Mapping[str, object]) -> str:
    id = entry.get("kid")
    return id if isinstance(id, str) else ""


def _key_of(entry: Mapping[str, object]) -> PublicKey:
    """The key of one entry; raises ValueError for a key that must not verify anything."""
    if entry.get("use", "sig") != "sig":
        raise _Unfit(f"its use is {entry['use']!r}, not 'sig'")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise _Unfit("its key_ops do not name 'verify'")
    key = _public_key(_numbers_of(entry).public_key())
    algorithm = entry.get("alg")
    if algorithm is None:
        return key
    if algorithm not in key.algorithms:
        raise _Unfit(f"its alg is {algorithm!r}; it could be one of {', '.join(key.algorithms)}")
    return PublicKey(key.jwk, (str(algorithm),))


def _numbers_of(
    entry: Mapping[str, object],
) -> rsa.RSAPublicNumbers | ec.EllipticCurvePublicNumbers:
    """The numbers that make the key; a private part that was published goes no further."""
    kind, curve = entry.get("kty"), entry.get("crv")
    if kind == "RSA":
        return rsa.RSAPublicNumbers(_integer(entry, "e"), _integer(entry, "n"))
    if kind == "EC" and isinstance(curve, str) and curve in _CURVES:
        x, y = _integer(entry, "x"), _integer(entry, "y")
        return ec.EllipticCurvePublicNumbers(x, y, _CURVES[curve][1])
    raise _Unfit(f"its kty is {kind!r} and its crv {curve!r}; RSA and EC on NIST's curves are used")


def _integer(entry: Mapping[str, object], name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise _Unfit(f"its {name} is missing")
    return int.from_bytes(decoded(value), "big")


def _public_key(key: object) -> PublicKey:
    """The key as a JWK built from its numbers, so that unusual encodings of them do not matter.

    Its strength is counted in bits of the modulus: padding with zeros makes no key longer.
    """
    if isinstance(key, rsa.RSAPublicKey) and key.key_size in _RSA_BITS:
        numbers = key.public_numbers()
        jwk = {"kty": "RSA", "n": _base64(numbers.n), "e": _base64(numbers.e)}
        return PublicKey(jwk, RSA_ALGORITHMS)
    for name, (algorithm, curve) in _CURVES.items():
        if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == curve.name:
            point, size = key.public_numbers(), (key.key_size + 7) // 8
            x, y = _base64(point.x, size), _base64(point.y, size)
            return PublicKey({"kty": "EC", "crv": name, "x": x, "y": y}, (algorithm,))
    raise _Unfit("it must be an RSA key of 2,048 to 8,192 bits, or one on P-256, P-384 or P-521")


def read_public_key(path: Path) -> PublicKey:
    """The key in a PEM file; raises PublicKeyError."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise PublicKeyError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise PublicKeyError(f"{path} is not a public key in PEM form.") from None
    try:
        return _public_key(key)
    except _Unfit as error:
        raise PublicKeyError(f"{path}: {error}.") from None


def _base64(number: int, num_bytes: int = 0) -> str:
    return encoded(number.to_bytes(num_bytes or (number.bit_length() + 7) // 8, "big"))


def encoded(data: bytes) -> str:
    """The bytes as base64url without padding (RFC 7515 §2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """The bytes of base64url text; raises ValueError for any other spelling than `encoded` gives.

    The last character of a text may have bits that mean nothing. Were they allowed to be set, one
    signature could be written in several ways.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64url") from None
    if encoded(data) != text:
        raise ValueError("base64url with unused bits set")
    return data
