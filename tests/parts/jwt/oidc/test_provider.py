"""Tokens of a real OpenID provider: the genuine ones open, the others do not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import zlib
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from auth.base import Authenticator, Credentials, InvalidCredentials, KeysUnavailable, Principal
from service.run.wiring import authenticator_of
from service.settings.settings import load


def authenticator(provider: Any, **more: Any) -> Authenticator:
    settings = {"jwt_issuer": provider.issuer, "jwt_audience": "urn:harmonium"} | more
    found = authenticator_of(load(settings))
    assert found is not None
    return found


async def ask(door: Authenticator, token: str) -> Principal | None:
    return await door.authenticate(Credentials("bearer", token))


@pytest.mark.parametrize("alg", ["RS256", "ES256"])
async def test_client_credentials_open_by_discovery_and_by_url(provider: Any, alg: str) -> None:
    token = provider.token(alg, "inference metrics")
    assert jwt.get_unverified_header(token)["alg"] == alg
    by_url = authenticator(provider, jwt_jwks_url=f"{provider.issuer}/jwks")
    for door in (authenticator(provider), by_url):
        principal = await ask(door, token)
        assert principal is not None
        assert principal.scopes == {"inference", "metrics"}


async def test_rotation_and_outage(provider: Any) -> None:
    door = authenticator(provider)
    before = provider.token()
    assert await ask(door, before)
    provider.rotate()
    after = provider.token()
    assert jwt.get_unverified_header(after)["kid"] == "rsa2"
    assert await ask(authenticator(provider), after)
    assert await ask(authenticator(provider), before), "the old key is still in the set"
    provider.stop()
    assert await ask(door, before), "known keys outlive the provider"
    with pytest.raises(KeysUnavailable):
        await ask(authenticator(provider), before)


async def test_no_forgery_opens(provider: Any) -> None:
    """Signed by the provider's own keys where a signature is what is right about them."""
    door, idp, now = authenticator(provider), provider.idp, int(time.time())
    assert await ask(door, idp.token())
    genuine = provider.token()
    _, payload, signature = genuine.split(".")
    text = f"{_base64({'alg': 'HS256', 'typ': 'at+jwt', 'kid': 'rsa1'})}.{payload}"
    der = idp.rsa.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    mac = hmac.new(der, text.encode(), hashlib.sha256).digest()
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = _raw(packer.compress(b" " * 4_000_000) + packer.flush())
    jwe = _base64({"alg": "dir", "enc": "A256GCM", "zip": "DEF", "kid": "rsa1"})
    forgeries = {
        "expired": idp.token(iat=now - 300, exp=now - 60),
        "wrong audience": idp.token(aud="urn:other"),
        "wrong issuer": idp.token(iss="http://127.0.0.1:1"),
        "future nbf": idp.token(nbf=now + 300),
        "no exp": idp.token(exp=None),
        "alg none": f"{_base64({'alg': 'none', 'typ': 'at+jwt', 'kid': 'rsa1'})}.{payload}.",
        "RS to HS": f"{text}.{_raw(mac)}",
        "kid traversal": idp.token(header={"kid": "../../../../etc/passwd"}),
        "unknown crit": idp.token(header={"crit": ["exp"]}),
        "oversized": idp.token(padding="x" * 9000),
        "deflate bomb": f"{jwe}..{_raw(b'0' * 12)}.{bomb}.{_raw(b'0' * 16)}",
        "another's key": type(idp)().token(iss=provider.issuer),
        "changed": f"{_base64({'alg': 'RS256', 'typ': 'at+jwt', 'kid': 'rsa1'})}."
        f"{_base64(idp.claims(scope='admin'))}.{signature}",
    }
    opened = []
    for name, token in forgeries.items():
        try:
            opened += [name] if await ask(door, token) else []
        except InvalidCredentials:
            continue
    assert opened == []
    assert await ask(door, genuine)


def _base64(value: Any) -> str:
    return _raw(json.dumps(value).encode())


def _raw(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
