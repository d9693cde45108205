"""Tokens as a way in; a module of its own, because what checks them takes long to import."""

from __future__ import annotations

from functools import partial

from auth.jwk import read_public_key
from auth.jwt_bearer import ClaimNames, JwtBearer
from auth.jwt_verify import TokenPolicy
from auth.key_fetch import discover_keys, fetch_keys
from auth.key_source import CachePolicy, FetchedKeys, KeySource, OneKey
from service.settings.settings import Settings


def bearer_of(settings: Settings) -> JwtBearer:
    """What accepts the configured issuer's tokens; raises AccessError."""
    issuer, audience = settings.jwt_issuer, settings.jwt_audience
    assert issuer is not None
    assert audience is not None
    names = ClaimNames(
        scope_prefix=settings.jwt_scope_prefix,
        scopes=settings.jwt_scopes_claim,
        granted=settings.jwt_scopes,
        tenant=settings.jwt_tenant_claim,
        models=settings.jwt_models_claim,
    )
    policy = TokenPolicy(issuer, audience, settings.jwt_max_lifetime_s, settings.jwt_audience_claim)
    return JwtBearer(_key_source(settings, issuer), policy, names)


def _key_source(settings: Settings, issuer: str) -> KeySource:
    if settings.jwt_public_key_path is not None:
        return OneKey(read_public_key(settings.jwt_public_key_path))
    policy = CachePolicy(max_stale_s=settings.jwt_max_stale_s)
    if settings.jwt_jwks_url is not None:
        return FetchedKeys(partial(fetch_keys, settings.jwt_jwks_url), policy)
    return FetchedKeys(partial(discover_keys, issuer), policy)
