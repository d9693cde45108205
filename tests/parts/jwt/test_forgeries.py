"""Tokens that are not what they say: each is refused, and none says why to its bearer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jose import jwt as jose_jwt

from auth.base import Credentials, InvalidCredentials, Principal
from parts.jwt.bearer import JwtBearer
from parts.jwt.jwk import PublicKey, keys_of
from parts.jwt.verify import TokenPolicy

Claims = dict[str, Any]


class Keys:
    """A fixed set of keys."""

    def __init__(self, keys: Mapping[str, PublicKey]) -> None:
        self._keys = keys

    async def key(self, id: str | None) -> PublicKey:
        if id not in self._keys:
            raise InvalidCredentials("unknown key")
        return self._keys[str(id)]

    async def newer(self, id: str | None, key: PublicKey) -> None:
        """None of them is ever replaced."""


def bearer_of(idp: Any, document: Any = None) -> JwtBearer:
    keys = keys_of(document or idp.jwks()).keys
    return JwtBearer(Keys(keys), TokenPolicy(idp.issuer, idp.audience, 3600))


async def principal_of(idp: Any, token: str, document: Any = None) -> Principal | None:
    credentials = Credentials("bearer", token)
    return await bearer_of(idp, document).authenticate(credentials)


async def refused(idp: Any, token: str, document: Any = None) -> None:
    """Refused by us; None means that it is no token at all, so that the chain refuses it."""
    principal, words = None, ""
    try:
        principal = await principal_of(idp, token, document)
    except InvalidCredentials as error:
        words = str(error)
    assert principal is None
    assert not words or token not in words


def b64(data: bytes | str) -> str:
    raw = data.encode() if isinstance(data, str) else data
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def unsigned(header: Any, claims: Any) -> str:
    return f"{b64(json.dumps(header))}.{b64(json.dumps(claims))}"


def hs256(header: Claims, claims: Claims, secret: bytes) -> str:
    text = unsigned({"alg": "HS256", "typ": "JWT"} | header, claims)
    return f"{text}.{b64(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


@pytest.mark.parametrize("alg", ["RS256", "ES256"])
@pytest.mark.parametrize(
    "typ", [None, "JWT", "jwt", "application/jwt", "at+jwt", "application/at+jwt"]
)
async def test_a_genuine_token_is_accepted(idp: Any, alg: str, typ: str | None) -> None:
    principal = await principal_of(idp, idp.token(alg, {"typ": typ}))
    assert principal is not None
    assert principal.scopes == {"inference", "models"}
    assert "ann" not in principal.id


NOW = int(time.time())
CLAIMS: dict[str, Claims] = {
    "expired": {"iat": NOW - 600, "exp": NOW - 120},
    "no exp": {"exp": None},
    "exp as text": {"exp": str(NOW + 60)},
    "exp as a boolean": {"exp": True},
    "exp without end": {"exp": float("inf")},
    "exp that is not a number": {"exp": float("nan")},
    "a lifetime without end": {"exp": NOW + 10 * 365 * 86400},
    "no iat, and an end that is far": {"iat": None, "exp": NOW + 10 * 86_400},
    "iat in the future": {"iat": NOW + 90_000, "exp": NOW + 90_060},
    "iat as text": {"iat": str(NOW)},
    "nbf in the future": {"nbf": NOW + 90_000},
    "nbf as text": {"nbf": str(NOW)},
    "no audience": {"aud": None},
    "another audience": {"aud": "urn:other"},
    "an audience that contains ours": {"aud": "urn:harmonium.evil"},
    "other audiences": {"aud": ["urn:a", "urn:b"]},
    "an audience that is not text": {"aud": {"urn:harmonium": 1}},
    "no issuer": {"iss": None},
    "another issuer": {"iss": "https://evil.example"},
    "an issuer that begins like ours": {"iss": "https://idp.example.evil"},
    "issuers in a list": {"iss": ["https://idp.example"]},
    "no subject": {"sub": None},
    "an empty subject": {"sub": ""},
    "a subject that is a number": {"sub": 7},
}


@pytest.mark.parametrize("case", CLAIMS)
@pytest.mark.parametrize("alg", ["RS256", "ES256"])
async def test_signed_claims_that_do_not_fit(idp: Any, case: str, alg: str) -> None:
    with pytest.raises(InvalidCredentials):
        await principal_of(idp, idp.token(alg, **CLAIMS[case]))


async def test_leeway_is_half_a_minute(idp: Any) -> None:
    now = int(time.time())
    assert await principal_of(idp, idp.token(iat=now - 60, exp=now - 20))
    assert await principal_of(idp, idp.token(iat=now + 20, exp=now + 80))
    await refused(idp, idp.token(iat=now - 90, exp=now - 40))
    await refused(idp, idp.token(iat=now - 90, exp=now - 30 + 0.999))  # as PyJWT: seconds count


HEADERS: dict[str, Claims] = {
    "no kid": {"kid": None},
    "an unknown kid": {"kid": "rsa2"},
    "a kid that is a path": {"kid": "../../../../dev/null"},
    "a kid that is a URL": {"kid": "https://evil.example/jwks.json"},
    "a kid that is SQL": {"kid": "' UNION SELECT 'key"},
    "a kid with a null": {"kid": "rsa1\x00"},
    "a kid that is a number": {"kid": 1},
    "a kid that is a list": {"kid": ["rsa1"]},
    "a kid that is long": {"kid": "k" * 300},
    "a critical extension": {"crit": ["b64"], "b64": False},
    "an unknown critical extension": {"crit": ["x-we-do-not-know"], "x-we-do-not-know": 1},
    "a payload that says it is not encoded": {"b64": False},
    "an empty list of critical extensions": {"crit": []},
    "a type that is not text": {"typ": 7},
    "an empty type": {"typ": ""},
    "an algorithm that is not the key's": {"alg": "PS256"},
    "a type that is no access token": {"typ": "dpop+jwt"},
    "a logout token": {"typ": "logout+jwt"},
    "a key of another kind": {"kid": "ec1"},
}


@pytest.mark.parametrize("case", HEADERS)
async def test_headers_that_do_not_fit(idp: Any, case: str) -> None:
    await refused(idp, idp.token("RS256", HEADERS[case]))


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None, 0])
@pytest.mark.parametrize("signature", ["", "AA"])
async def test_alg_none(idp: Any, alg: Any, signature: str) -> None:
    header = {"typ": "JWT", "alg": alg, "kid": "rsa1"}
    await refused(idp, f"{unsigned(header, idp.claims())}.{signature}")


@pytest.mark.parametrize("kid", ["rsa1", "ec1"])
@pytest.mark.parametrize(
    "form", ["DER", "PEM", "PKCS1", "OpenSSH", "raw", "JWK", "JWKS", "modulus", "empty"]
)
async def test_hmac_with_what_everybody_knows_of_a_public_key(
    idp: Any, kid: str, form: str
) -> None:
    """CVE-2024-33663 and what its fix forgot: the DER bytes."""
    key = (idp.rsa if kid == "rsa1" else idp.ec).public_key()
    jwk = next(jwk for jwk in idp.jwks()["keys"] if jwk["kid"] == kid)
    point = (
        (Encoding.DER, PublicFormat.PKCS1)
        if kid == "rsa1"
        else (Encoding.X962, PublicFormat.CompressedPoint)
    )
    secrets = {
        "DER": key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        "PEM": key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "PKCS1": key.public_bytes(*point),
        "OpenSSH": key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        "raw": json.dumps(jwk).encode(),
        "JWK": json.dumps(jwk, sort_keys=True, separators=(",", ":")).encode(),
        "JWKS": json.dumps(idp.jwks()).encode(),
        "modulus": base64.urlsafe_b64decode((jwk.get("n") or jwk["x"]) + "=="),
        "empty": b"",
    }
    for alg in ("HS256", "HS384", "RS256"):
        await refused(idp, hs256({"kid": kid, "alg": alg}, idp.claims(), secrets[form]))


async def test_the_library_alone_takes_the_der_forgery(idp: Any) -> None:
    """Why `verify` never hands it bytes: if this fails, the library was mended."""
    der = idp.rsa.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    forged = hs256({"kid": "rsa1"}, idp.claims(), der)
    options = {"audience": idp.audience, "issuer": idp.issuer}
    assert jose_jwt.decode(forged, der, algorithms=["HS256", "RS256"], **options)["sub"] == "ann"


async def test_a_symmetric_key_in_the_key_set_verifies_nothing(idp: Any) -> None:
    shared = {"kty": "oct", "kid": "oct1", "use": "sig", "alg": "HS256", "k": b64("secret")}
    document = {"keys": [*idp.jwks()["keys"], shared]}
    await refused(idp, hs256({"kid": "oct1"}, idp.claims(), b"secret"), document)


@pytest.fixture(scope="module")
def forger(idp: Any) -> Any:
    """A provider with keys of its own."""
    return type(idp)()


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c"])
async def test_a_key_that_comes_with_the_token_is_not_used(
    idp: Any, forger: Any, name: str
) -> None:
    jwk = idp.jwk("rsa1", "RS256", forger.rsa)
    header = {
        "typ": "JWT",
        "alg": "RS256",
        "kid": "rsa1",
        name: jwk if name == "jwk" else "https://evil.example",
    }
    await refused(idp, forger.token("RS256", header))


async def test_another_key_under_the_right_id(idp: Any, forger: Any) -> None:
    await refused(idp, forger.token("RS256"))
    await refused(idp, forger.token("ES256"))


async def test_a_changed_payload(idp: Any) -> None:
    head, _, signature = idp.token().split(".")
    for claims in (idp.claims(sub="root"), idp.claims(scope="admin")):
        await refused(idp, f"{head}.{b64(json.dumps(claims))}.{signature}")


@pytest.mark.parametrize("signature", ["", "A" * 86, "A" * 342, b64(b"\x00" * 64)])
@pytest.mark.parametrize("alg", ["RS256", "ES256"])
async def test_empty_and_zero_signatures(idp: Any, alg: str, signature: str) -> None:
    """ES256 with r = s = 0 is CVE-2022-21449."""
    head, payload, _ = idp.token(alg).split(".")
    await refused(idp, f"{head}.{payload}.{signature}")


async def test_an_oversized_token_is_refused_unread(idp: Any) -> None:
    await refused(idp, idp.token(padding="x" * 8192))
    await refused(idp, "ey" + "A" * 10_000_000 + ".e30.AA")


async def test_a_bomb_that_inflates(idp: Any) -> None:
    """CVE-2024-33664: a JWE of five parts with `zip`; and `zip` in a signed token."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(b" " * 5_000_000) + packer.flush()
    head = {"alg": "dir", "enc": "A256GCM", "zip": "DEF", "typ": "JWT", "kid": "rsa1"}
    await refused(idp, f"{b64(json.dumps(head))}..{b64(b'0' * 12)}.{b64(bomb)}.{b64(b'0' * 16)}")
    signed = idp.signed({"typ": "JWT", "alg": "RS256", "kid": "rsa1", "zip": "DEF"}, bomb[:4000])
    await refused(idp, signed)


PAYLOADS = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"7",
    b"{",
    b"\xff\xfe",
    b"[" * 3000 + b"]" * 3000,
    b'{"exp":' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload[:12].decode("latin-1"))
async def test_signed_payloads_that_are_no_claims(idp: Any, payload: bytes) -> None:
    await refused(idp, idp.signed({"typ": "JWT", "alg": "RS256", "kid": "rsa1"}, payload))


TEXTS = [
    "a.b.c",
    "ey.ey.ey",
    "eyJ.e30.",
    "..",
    "eyJhbGciOiJSUzI1NiJ9..",
    "ey\u00e9.e30.AA",
    "ey .e30.AA",
]


@pytest.mark.parametrize("text", TEXTS)
async def test_what_only_looks_like_a_token(idp: Any, text: str) -> None:
    await refused(idp, text)


async def test_a_header_that_nests_without_end(idp: Any) -> None:
    await refused(idp, f"{b64('{' + chr(34) + 'a' + chr(34) + ':' + '[' * 4000)}.e30.AA")
