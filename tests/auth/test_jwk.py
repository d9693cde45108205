"""Which keys of a key set may verify tokens."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from auth.jwk import keys_of


def test_keys_for_other_uses_verify_nothing(idp: Any) -> None:
    good = idp.jwk("rsa1", "RS256", idp.rsa)
    weak = idp.jwk("rsa1", "RS256", rsa.generate_private_key(65537, 1024))
    changed = [
        good | {"use": "enc"},
        {name: value for name, value in good.items() if name != "use"},
        good | {"alg": "RS512"},
        good | {"kty": "oct"},
        {name: value for name, value in good.items() if name != "n"},
        good | {"kid": ""},
        weak,
    ]
    for entry in changed:
        assert keys_of({"keys": [entry, "nonsense", None]}) == {}
    assert keys_of({"keys": [good, good | {"n": weak["n"]}]}) == {}, "which one would it be?"
    assert list(keys_of({"keys": [good]})) == ["rsa1"]


def test_a_private_key_that_was_published_goes_no_further(idp: Any) -> None:
    entry = idp.jwk("rsa1", "RS256", idp.rsa) | {"d": "AAAA", "p": "AAAA"}
    assert set(keys_of({"keys": [entry]})["rsa1"].jwk) == {"kty", "n", "e"}
