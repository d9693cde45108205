"""Which keys of a key set may verify tokens."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from parts.jwt.jwk import RSA_ALGORITHMS, keys_of


def without(entry: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in names}


def padded(entry: dict[str, Any], num_zeros: int) -> dict[str, Any]:
    """The same modulus behind zeros, as long as a stronger one."""
    n = base64.urlsafe_b64decode(entry["n"] + "==")
    longer = base64.urlsafe_b64encode(bytes(num_zeros) + n).rstrip(b"=").decode()
    return entry | {"n": longer}


def test_keys_for_other_uses_verify_nothing_and_it_is_said_why(idp: Any) -> None:
    good = idp.jwk("rsa1", "RS256", idp.rsa)
    weak = idp.jwk("rsa1", "RS256", rsa.generate_private_key(65537, 1024))
    curve = idp.jwk("rsa1", "ES256", idp.ec)
    changed = {
        "its use is 'enc'": good | {"use": "enc"},
        "key_ops do not name 'verify'": good | {"key_ops": ["encrypt", "wrapKey"]},
        "its alg is 'RSA-OAEP'": good | {"alg": "RSA-OAEP"},
        "its alg is 'ES384'": curve | {"alg": "ES384"},
        "its kty is 'oct'": good | {"kty": "oct"},
        "its crv 'secp256k1'": curve | {"crv": "secp256k1"},
        "its n is missing": without(good, "n"),
        "2,048 to 8,192 bits": weak,
        "2,048": padded(weak, 128),
        "e must be": good | {"e": "AQ"},
        "unused bits set": good | {"e": "AR"},
    }
    for reason, entry in changed.items():
        found = keys_of({"keys": [entry, "nonsense", None]})
        assert not found.keys, reason
        assert reason in found.unfit["rsa1"]
    twice = keys_of({"keys": [good, good | {"n": weak["n"]}]})
    assert (dict(twice.keys), dict(twice.unfit)) == ({}, {"rsa1": "several keys have this id"})
    assert list(keys_of({"keys": [good, good | {"kid": ""}]}).keys) == ["rsa1"]


def test_what_rfc_7517_leaves_open_may_be_left_out(idp: Any) -> None:
    good = idp.jwk("rsa1", "RS256", idp.rsa)
    [key] = keys_of({"keys": [without(good, "use", "alg")]}).keys.values()
    assert key.algorithms == RSA_ALGORITHMS
    [key] = keys_of({"keys": [good | {"key_ops": ["verify"]}]}).keys.values()
    assert key.algorithms == ("RS256",)
    [key] = keys_of({"keys": [padded(good, 1)]}).keys.values()
    assert key.jwk["n"] == good["n"], "zeros before a modulus change nothing"


@pytest.mark.parametrize(("alg", "curve"), [("ES384", ec.SECP384R1()), ("ES512", ec.SECP521R1())])
def test_a_curve_has_its_one_algorithm(idp: Any, alg: str, curve: ec.EllipticCurve) -> None:
    entry = without(idp.jwk("ec2", alg, ec.generate_private_key(curve)), "alg")
    assert keys_of({"keys": [entry]}).keys["ec2"].algorithms == (alg,)


def test_a_private_key_that_was_published_goes_no_further(idp: Any) -> None:
    entry = idp.jwk("rsa1", "RS256", idp.rsa) | {"d": "AAAA", "p": "AAAA"}
    assert set(keys_of({"keys": [entry]}).keys["rsa1"].jwk) == {"kty", "n", "e"}
