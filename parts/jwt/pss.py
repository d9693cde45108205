"""RSASSA-PSS (RFC 7518 §3.5) for python-jose, which has a place for it but no implementation."""

from __future__ import annotations

from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from jose import jwk
from jose.backends.base import Key

from parts.jwt.jwk import decoded

_HASHES: dict[str, hashes.HashAlgorithm] = {
    "PS256": hashes.SHA256(),
    "PS384": hashes.SHA384(),
    "PS512": hashes.SHA512(),
}


class PssKey(Key):
    """An RSA public key that verifies signatures of RSASSA-PSS."""

    def __init__(self, key: dict[str, str], algorithm: str) -> None:
        n, e = (int.from_bytes(decoded(key[name]), "big") for name in ("n", "e"))
        self._key: RSAPublicKey = RSAPublicNumbers(e, n).public_key()
        self._hash = _HASHES[algorithm]

    def verify(self, msg: Any, sig: Any) -> bool:
        padding = PSS(MGF1(self._hash), self._hash.digest_size)  # the salt is as long as the hash
        try:
            self._key.verify(sig, msg, padding, self._hash)
        except InvalidSignature:
            return False
        return True


def register() -> None:
    for algorithm in _HASHES:
        jwk.register_key(algorithm, PssKey)
