"""Who may call, as the settings say."""

from __future__ import annotations

from functools import partial

from auth.api_keys import ApiKeys
from auth.base import Authenticator
from auth.chain import Chain
from auth.client_certificate import ClientCertificate
from auth.jwk import read_public_key
from auth.jwt_bearer import ClaimNames, JwtBearer
from auth.jwt_verify import TokenPolicy
from auth.key_fetch import discover_keys, fetch_keys
from auth.key_source import CachePolicy, FetchedKeys, KeySource, OneKey
from auth.key_store import KeyStore
from service.settings import Settings


def authenticator_of(settings: Settings) -> Authenticator | None:
    """The configured ways in, None when there are none; raises AccessError."""
    ways: list[Authenticator] = []
    if settings.api_keys_path is not None:
        store = KeyStore(settings.api_keys_path)
        store.load()
        ways.append(store)
    if settings.jwt_issuer is not None and settings.jwt_audience is not None:
        ways.append(_bearer(settings, settings.jwt_issuer, settings.jwt_audience))
    if settings.ssl_mode == "mtls":
        ways.append(ClientCertificate())
    if settings.api_key_list:
        ways.append(ApiKeys(settings.api_key_list))  # the last: any text may be such a key
    return Chain(ways) if ways else None


def _bearer(settings: Settings, issuer: str, audience: str) -> JwtBearer:
    names = ClaimNames(
        settings.jwt_scope_prefix, settings.jwt_tenant_claim, settings.jwt_models_claim
    )
    policy = TokenPolicy(issuer, audience, settings.jwt_max_lifetime_s)
    return JwtBearer(_key_source(settings, issuer), policy, names)


def _key_source(settings: Settings, issuer: str) -> KeySource:
    if settings.jwt_public_key_path is not None:
        return OneKey(read_public_key(settings.jwt_public_key_path))
    policy = CachePolicy(max_stale_s=settings.jwt_max_stale_s)
    if settings.jwt_jwks_url is not None:
        return FetchedKeys(partial(fetch_keys, settings.jwt_jwks_url), policy)
    return FetchedKeys(partial(discover_keys, issuer), policy)
