"""What a token makes of its bearer, and what settings make of tokens."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import SecretStr

from auth.base import Credentials, InvalidCredentials, Principal
from parts.jwt.bearer import ClaimNames, JwtBearer
from parts.jwt.jwk import KeySet, PublicKeyError, keys_of, read_public_key
from parts.jwt.key_source import CachePolicy, FetchedKeys, OneKey
from parts.jwt.settings import JwtSettings
from parts.jwt.verify import TokenPolicy
from service.run.wiring import authenticator_of
from service.settings.errors import SettingsError
from service.settings.settings import load


async def principal_of(idp: Any, *, names: ClaimNames | None = None, **claims: Any) -> Principal:
    policy = TokenPolicy(idp.issuer, idp.audience)
    bearer = JwtBearer(OneKey(keys_of(idp.jwks()).keys["rsa1"]), policy, names)
    principal = await bearer.authenticate(Credentials("bearer", idp.token(**claims)))
    assert principal is not None
    return principal


@pytest.mark.parametrize("name", ["key-2a68c710", "jwt-153b4bfcbe9f397c", "cert-0123456789abcdef"])
async def test_no_tenant_is_called_as_a_caller_is(idp: Any, name: str) -> None:
    """Ids are no secrets, they stand in the audit log: such a tenant would be that caller's own."""
    names = ClaimNames(tenant="org")
    with pytest.raises(InvalidCredentials, match="looks like a caller's id"):
        await principal_of(idp, names=names, org=name)
    assert (await principal_of(idp, names=names, org=f"{name}-gmbh")).tenant_id == f"{name}-gmbh"


@pytest.mark.parametrize("new_alg", ["RS256", "ES256"])
async def test_a_key_replaced_under_its_kid_is_taken_with_the_next_token(
    idp: Any, new_alg: str
) -> None:
    """RFC 7517 asks for no new `kid`; some providers put another key under the same one."""
    published = [idp.jwk("one", "RS256", idp.rsa)]

    async def fetch() -> KeySet:
        return keys_of({"keys": published})

    keys = FetchedKeys(fetch, CachePolicy(cooldown_s=0.0))
    bearer = JwtBearer(keys, TokenPolicy(idp.issuer, idp.audience))
    before = idp.token(header={"kid": "one"})
    assert await bearer.authenticate(Credentials("bearer", before))
    idp.rsa = rsa.generate_private_key(65537, 2048)
    published[:] = [idp.jwk("one", new_alg, idp.rsa if new_alg == "RS256" else idp.ec)]
    after = idp.token(new_alg, header={"kid": "one"})
    assert await bearer.authenticate(Credentials("bearer", after))
    with pytest.raises(InvalidCredentials):
        await bearer.authenticate(Credentials("bearer", before))


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "openid metrics  admin"}, {"metrics", "admin"}),
        ({"scope": None, "scp": ["models", 7, None]}, {"models"}),
        ({"scope": "models", "scp": "metrics"}, {"models", "metrics"}),
        ({"scope": None}, set()),
        ({"scope": {"admin": True}}, set()),
        ({"scope": "Admin administrator"}, set()),
    ],
)
async def test_scopes_are_those_of_ours_that_it_names(
    idp: Any, claims: Any, scopes: set[str]
) -> None:
    assert (await principal_of(idp, **claims)).scopes == scopes


async def test_scopes_may_have_a_prefix(idp: Any) -> None:
    names = ClaimNames(scope_prefix="llm:")
    principal = await principal_of(idp, names=names, scope="llm:models admin xllm:metrics")
    assert principal.scopes == {"models"}


async def test_tenants_and_models_come_from_the_claims_that_are_named(idp: Any) -> None:
    names = ClaimNames(tenant="org", models="llms")
    one = await principal_of(idp, names=names, org="acme", llms=["a", "b"])
    assert (one.tenant_id, one.models) == ("acme", ("a", "b"))
    assert (await principal_of(idp, names=names, org="acme", sub="bob")).tenant_id == "acme"
    assert (await principal_of(idp, names=names)).models == (), "not listed is not allowed"


async def test_without_them_every_subject_is_a_tenant_that_may_use_all(idp: Any) -> None:
    ann, bob = [await principal_of(idp, sub=sub, org="acme") for sub in ("ann", "bob")]
    assert ann.tenant_id != bob.tenant_id
    assert ann.models is None


@pytest.mark.parametrize("tenant", [7, None, ["acme"], "a\nb", "x" * 129])
async def test_a_tenant_that_is_no_name_is_refused(idp: Any, tenant: Any) -> None:
    bearer = JwtBearer(
        OneKey(keys_of(idp.jwks()).keys["rsa1"]),
        TokenPolicy(idp.issuer, idp.audience),
        ClaimNames(tenant="org"),
    )
    header = {"typ": "JWT", "alg": "RS256"}
    token = idp.signed(header, json.dumps(idp.claims() | {"org": tenant}).encode())
    with pytest.raises(InvalidCredentials):
        await bearer.authenticate(Credentials("bearer", token))


async def test_the_audit_says_once_who_is_behind_an_id(
    idp: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    policy = TokenPolicy(idp.issuer, idp.audience)
    bearer = JwtBearer(OneKey(keys_of(idp.jwks()).keys["rsa1"]), policy)
    tokens = [idp.token(jti=str(number)) for number in range(3)]
    for token in tokens:
        await bearer.authenticate(Credentials("bearer", token))
    assert caplog.text.count("token.subject") == 1
    assert "subject=ann issuer=https://idp.example" in caplog.text
    assert not any(part in caplog.text for token in tokens for part in token.split(".")[1:])


@pytest.mark.parametrize("kind", ["RS256", "ES256"])
async def test_a_local_key_needs_no_provider_and_no_kid(
    idp: Any, tmp_path: Path, kind: str
) -> None:
    key = idp.rsa if kind == "RS256" else idp.ec
    path = tmp_path / "key.pem"
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    settings = load(
        {
            "jwt_issuer": idp.issuer,
            "jwt_audience": idp.audience,
            "jwt_public_key_path": path,
            "api_keys": SecretStr("a.key.that-is-dotted"),
        }
    )
    authenticator = authenticator_of(settings)
    assert authenticator is not None
    other = "ES256" if kind == "RS256" else "RS256"
    for header in ({}, {"kid": None}, {"kid": "any"}):
        assert await authenticator.authenticate(Credentials("bearer", idp.token(kind, header)))
    for value in (idp.token(other), "a.b.c"):
        with pytest.raises(InvalidCredentials):
            await authenticator.authenticate(Credentials("bearer", value))
    assert await authenticator.authenticate(Credentials("bearer", "a.key.that-is-dotted"))


@pytest.mark.parametrize("case", ["missing", "no PEM", "short", "another curve"])
def test_a_key_file_that_cannot_be_used_is_named(tmp_path: Path, case: str) -> None:
    path = tmp_path / "key.pem"
    keys: dict[str, Any] = {
        "short": rsa.generate_private_key(65537, 1024),
        "another curve": ec.generate_private_key(ec.SECP256K1()),
    }
    if case == "no PEM":
        path.write_text("nothing")
    elif case in keys:
        form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        path.write_bytes(keys[case].public_key().public_bytes(*form))
    with pytest.raises(PublicKeyError, match=r"key\.pem"):
        read_public_key(path)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"jwt_issuer": "https://i.example"}, "NIM_JWT_AUDIENCE"),
        ({"jwt_audience": "a"}, "NIM_JWT_ISSUER"),
        ({"jwt_issuer": "http://i.example", "jwt_audience": "a"}, "https"),
        ({"jwt_jwks_url": "https://i.example/jwks"}, "NIM_JWT_ISSUER"),
        ({"jwt_jwks_url": "http://i.example/jwks"}, "--jwt-jwks-url"),
        ({"jwt_jwks_url": "https://i", "jwt_public_key_path": "k"}, "--jwt-public-key-path"),
        (
            {"auth": "off", "jwt_issuer": "https://i", "jwt_audience": "a"},
            "--jwt-issuer .*NIM_AUTH",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(given)


async def test_every_setting_reaches_the_bearer(idp: Any, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(idp.rsa.public_key().public_bytes(*form))
    given = {
        "jwt_public_key_path": path,
        "jwt_issuer": idp.issuer,
        "jwt_audience": "ours",
        "jwt_audience_claim": "client_id",
        "jwt_scope_prefix": "llm:",
        "jwt_scopes_claim": "roles",
        "jwt_granted_scopes": "metrics",
        "jwt_tenant_claim": "org",
        "jwt_models_claim": "llms",
    }
    assert given.keys() | {"jwt_jwks_url"} == vars(JwtSettings)["__annotations__"].keys() - {
        "of_access",
        "constants",
    }
    authenticator = authenticator_of(load(given))
    assert authenticator is not None
    claims = {"client_id": "ours", "roles": ["llm:models"], "org": "acme", "llms": ["nano"]}
    token = idp.token(aud=None, **claims)
    principal = await authenticator.authenticate(Credentials("bearer", token))
    assert principal is not None
    assert principal.scopes == {"models", "metrics"}
    assert (principal.tenant_id, principal.models) == ("acme", ("nano",))
    now = int(time.time())
    longest = idp.token(aud=None, iat=now, exp=now + 24 * 3600, **claims)
    assert await authenticator.authenticate(Credentials("bearer", longest)) is not None
    longer = idp.token(aud=None, iat=now, exp=now + 24 * 3600 + 1, **claims)
    with pytest.raises(InvalidCredentials, match="a lifetime of"):
        await authenticator.authenticate(Credentials("bearer", longer))


@pytest.mark.parametrize("field", ["jwt_max_lifetime_s", "jwt_max_stale_s"])
def test_former_settings_are_refused_with_the_value_that_is_used(field: str) -> None:
    used = {
        "jwt_max_lifetime_s": TokenPolicy("i", "a").max_lifetime_s,
        "jwt_max_stale_s": CachePolicy().max_stale_s,
    }
    with pytest.raises(
        SettingsError, match=f"{field} is no longer a setting, .* {used[field]:.0f}"
    ):
        load({field: 1})
