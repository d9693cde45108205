"""Tokens and key sets in the shapes that identity providers document, and what each needs set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest

from auth.base import Credentials, InvalidCredentials
from parts.jwt.auth import bearer_of
from parts.jwt.settings import JwtSettings
from service.settings.errors import SettingsError
from service.settings.settings import load

NOW = int(time.time())  # when tests are collected: `later` moves it to when one runs
TIMES = ("iat", "nbf", "exp", "auth_time")
KID = "mMdHF1a8bqZvXG5V4mq3LAzyKwvGhvMNs4Mz0XGv3a8"


@dataclass(frozen=True)
class Shape:
    """A provider's access token, the fields of its keys beside the numbers, and our settings."""

    header: dict[str, Any]
    claims: dict[str, Any]
    key: dict[str, Any]
    settings: dict[str, str]
    scopes: set[str] = field(default_factory=lambda: {"inference"})


# Okta: developer.okta.com/docs/api, "Access token": header of kid and alg; scopes are a list.
OKTA = Shape(
    {"kid": KID, "alg": "RS256"},
    {
        "ver": 1,
        "jti": "AT.0mP4JKAZX1iACIT4vbEDF7LpvDVjxypPMf0D7uX39RE",
        "iss": "https://acme.okta.example/oauth2/ausabc",
        "aud": "api://harmonium",
        "sub": "ann@acme.example",
        "iat": NOW,
        "exp": NOW + 3600,
        "cid": "0oabskvc6442nkvQO0h7",
        "uid": "00ubk8bc5e3Cm0C3B0h7",
        "scp": ["inference", "openid"],
        "auth_time": NOW,
    },
    {"kid": KID, "alg": "RS256", "use": "sig"},
    {"jwt_audience": "api://harmonium"},
)
# Amazon Cognito, "Understanding the access token": no typ and no aud; who it was made for stands
# in client_id, and custom scopes have their resource server's name before them.
COGNITO = Shape(
    {"kid": "1234example=", "alg": "RS256"},
    {
        "sub": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
        "cognito:groups": ["staff"],
        "iss": "https://cognito-idp.us-west-2.amazonaws.example/us-west-2_example",
        "version": 2,
        "client_id": "1example23456789",
        "origin_jti": "aaaaaaaa-bbbb-cccc-dddd-ffffffffffff",
        "event_id": "aaaaaaaa-bbbb-cccc-dddd-000000000000",
        "token_use": "access",
        "scope": "harmonium/inference openid",
        "auth_time": NOW,
        "exp": NOW + 3600,
        "iat": NOW,
        "jti": "aaaaaaaa-bbbb-cccc-dddd-111111111111",
        "username": "ann",
    },
    {"kid": "1234example=", "alg": "RS256", "use": "sig"},
    {
        "jwt_audience": "1example23456789",
        "jwt_audience_claim": "client_id",
        "jwt_scope_prefix": "harmonium/",
    },
)
# Kubernetes, "Managing service accounts": a projected token has no typ and no scopes.
KUBERNETES = Shape(
    {"alg": "RS256", "kid": KID},
    {
        "aud": ["https://harmonium.models.svc"],
        "exp": NOW + 3607,
        "iat": NOW,
        "iss": "https://cluster.example",
        "jti": "aed34954-b33a-4142-b1ec-389d6bbb4936",
        "kubernetes.io": {
            "namespace": "agents",
            "node": {"name": "node-1", "uid": "646e7c5e-32d6-4d42-9dbd-e504e6cbe6b1"},
            "pod": {"name": "agent-1", "uid": "5e0bd49b-f040-43b0-99b7-22765a53f7f3"},
            "serviceaccount": {"name": "agent", "uid": "14ee3fa4-a7e2-420f-9f9a-dbc4507c3798"},
        },
        "nbf": NOW,
        "sub": "system:serviceaccount:agents:agent",
    },
    {"use": "sig", "kid": KID, "alg": "RS256"},
    {"jwt_audience": "https://harmonium.models.svc", "jwt_granted_scopes": "inference, models"},
    {"inference", "models"},
)
# Keycloak: typ JWT in the header, Bearer in the claims; the key set also holds one to encrypt to.
KEYCLOAK = Shape(
    {"alg": "RS256", "typ": "JWT", "kid": KID},
    {
        "exp": NOW + 3600,
        "iat": NOW,
        "auth_time": NOW,
        "jti": "onrtac:312ee6c2-5a56-4ba4-9c0d-5b4c8b8b3a0b",
        "iss": "https://sso.example/realms/acme",
        "aud": ["harmonium", "account"],
        "sub": "36fa0f91-f94d-4a0c-afed-6b7d952e47da",
        "typ": "Bearer",
        "azp": "chat-ui",
        "sid": "2a88c258-f73a-4103-b862-e1fbd8f4e04e",
        "acr": "1",
        "allowed-origins": ["https://chat.example"],
        "realm_access": {"roles": ["offline_access", "default-roles-acme"]},
        "resource_access": {"account": {"roles": ["view-profile"]}},
        "scope": "openid inference email profile",
        "email_verified": True,
        "preferred_username": "ann",
    },
    {"kid": KID, "alg": "RS256", "use": "sig", "x5c": ["MIIC"], "x5t": "t", "x5t#S256": "s"},
    {"jwt_audience": "harmonium"},
)
# Microsoft Entra ID, "Access token claims reference", v2.0, for an application: its permissions are
# in roles; the keys name no alg.
ENTRA = Shape(
    {"typ": "JWT", "alg": "RS256", "kid": KID},
    {
        "aud": "6e74172b-be56-4843-9ff4-e66a39bb12e3",
        "iss": "https://login.microsoftonline.example/72f988bf-86f1-41af-91ab-2d7cd011db47/v2.0",
        "iat": NOW - 300,
        "nbf": NOW - 300,
        "exp": NOW + 3600,
        "aio": "AXQAi/8IAAAA",
        "azp": "6e74172b-be56-4843-9ff4-e66a39bb12e4",
        "azpacr": "1",
        "oid": "690222be-ff1a-4d56-abd1-7e4f7d38e474",
        "rh": "0.AX0AIW",
        "roles": ["inference"],
        "sub": "690222be-ff1a-4d56-abd1-7e4f7d38e474",
        "tid": "72f988bf-86f1-41af-91ab-2d7cd011db47",
        "uti": "sGdgY6zX",
        "ver": "2.0",
    },
    {"kid": KID, "use": "sig", "x5t": KID, "x5c": ["MIID"]},
    {"jwt_audience": "6e74172b-be56-4843-9ff4-e66a39bb12e3", "jwt_scopes_claim": "roles"},
)
# What the RFCs ask for and no more: no typ, no iat, a key without use and alg, and PS256.
LEAST = Shape(
    {"alg": "PS256", "kid": "k"},
    {"iss": "https://i.example", "aud": "a", "sub": "s", "exp": NOW + 3600, "scope": "inference"},
    {"kid": "k"},
    {"jwt_audience": "a"},
)
SHAPES = {
    "okta": OKTA,
    "cognito": COGNITO,
    "kubernetes": KUBERNETES,
    "keycloak": KEYCLOAK,
    "entra": ENTRA,
    "least": LEAST,
}
Web = Callable[..., str]


def later(claims: dict[str, Any]) -> dict[str, Any]:
    """The claims of a token that is made now."""
    since_s = int(time.time()) - NOW
    moved = {name: claims[name] + since_s for name in TIMES if claims.get(name) is not None}
    return claims | moved


async def scopes_of(
    shape: Shape, idp: Any, web: Web, claims: dict[str, Any] | None = None, **changed: str | None
) -> set[str]:
    """What a bearer of the token may do, the key set being fetched."""
    numbers = {name: idp.jwk("", "RS256", idp.rsa)[name] for name in ("kty", "n", "e")}
    sealing = numbers | {"kid": "sealing", "use": "enc", "alg": "RSA-OAEP"}
    document = json.dumps({"keys": [numbers | shape.key, sealing]}).encode()
    url = web(lambda _path: (200, document))
    given = {"jwt_jwks_url": url, "jwt_issuer": shape.claims["iss"], **shape.settings, **changed}
    settings = load({name: value for name, value in given.items() if value is not None})
    algorithm = jwt.get_algorithm_by_name(shape.header["alg"])
    claims = later(claims or shape.claims)
    parts = [json.dumps(part).encode() for part in (shape.header, claims)]
    text = ".".join(jwt.utils.base64url_encode(part).decode() for part in parts)
    signature = algorithm.sign(text.encode(), idp.rsa)
    token = f"{text}.{jwt.utils.base64url_encode(signature).decode()}"
    principal = await bearer_of(settings.of(JwtSettings)).authenticate(Credentials("bearer", token))
    assert principal is not None
    return set(principal.scopes)


@pytest.mark.parametrize("name", SHAPES)
async def test_a_providers_token_opens_what_it_says(idp: Any, web: Web, name: str) -> None:
    assert await scopes_of(SHAPES[name], idp, web) == SHAPES[name].scopes


@pytest.mark.parametrize("alg", ["RS384", "RS512", "PS256", "PS384", "PS512"])
async def test_every_algorithm_of_an_rsa_key(idp: Any, web: Web, alg: str) -> None:
    shape = Shape({**LEAST.header, "alg": alg}, LEAST.claims, LEAST.key, LEAST.settings)
    assert await scopes_of(shape, idp, web) == {"inference"}


async def test_a_signature_of_another_padding_is_refused(idp: Any, web: Web) -> None:
    """RS256 under a header that says PS256: neither passes for the other."""
    numbers = {name: idp.jwk("", "RS256", idp.rsa)[name] for name in ("kty", "n", "e")}
    document = json.dumps({"keys": [numbers | LEAST.key]}).encode()
    given = {"jwt_jwks_url": web(lambda _path: (200, document)), "jwt_audience": "a"}
    bearer = bearer_of(load({**given, "jwt_issuer": "https://i.example"}).of(JwtSettings))
    token = idp.signed(LEAST.header, json.dumps(LEAST.claims).encode(), "RS256")
    with pytest.raises(InvalidCredentials, match="the signature does not match the key"):
        await bearer.authenticate(Credentials("bearer", token))


REFUSED: dict[str, tuple[Shape, dict[str, Any], dict[str, Any], str]] = {
    "another client's": (COGNITO, {"client_id": "other"}, {}, "its client_id is 'other'"),
    "no audience": (COGNITO, {}, {"jwt_audience_claim": None}, "its aud is missing"),
    "an aud beside it": (COGNITO, {"aud": "https://other"}, {}, "its aud is 'https://other'"),
    "expired": (OKTA, {"exp": NOW - 90}, {}, r"expired \d+ s ago"),
    "too long": (LEAST, {"exp": NOW + 90_000}, {}, "a lifetime of .* at most 86400 s"),
    "from the future": (KUBERNETES, {"nbf": NOW + 3000}, {}, "its nbf is .* in the future"),
    "of another issuer": (KEYCLOAK, {"iss": "https://evil"}, {}, "its iss is 'https://evil'"),
    "without a subject": (ENTRA, {"sub": ""}, {}, "its sub is ''"),
    "without an end": (ENTRA, {"exp": None}, {}, "its exp is None"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refusal_says_what_is_wrong(idp: Any, web: Web, case: str) -> None:
    shape, changes, settings, reason = REFUSED[case]
    with pytest.raises(InvalidCredentials, match=reason):
        await scopes_of(shape, idp, web, shape.claims | changes, **settings)


async def test_scopes_come_from_one_claim_where_it_is_named(idp: Any, web: Web) -> None:
    claims = ENTRA.claims | {"scp": "metrics", "scope": "models"}
    assert await scopes_of(ENTRA, idp, web, claims) == {"inference"}
    assert await scopes_of(ENTRA, idp, web, claims, jwt_scopes_claim=None) == {"metrics", "models"}


def test_nobody_is_granted_administration_by_a_setting() -> None:
    with pytest.raises(SettingsError, match=r"--jwt-granted-scopes .*'admin' is not one of"):
        load({"jwt_granted_scopes": "inference,admin"})
