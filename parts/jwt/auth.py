"""Tokens as one way to recognise callers. Libraries are imported where there are tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from auth.base import Scope
from parts.jwt.settings import JwtSettings
from service.run.wiring import AuthPart
from service.settings.group import words
from service.settings.settings import Settings

if TYPE_CHECKING:
    from parts.jwt.bearer import JwtBearer
    from parts.jwt.key_source import KeySource


class _Jwt(AuthPart):
    def check(self, settings: Settings) -> None:
        path = settings.of(JwtSettings).jwt_public_key_path
        if path is not None:
            from parts.jwt.jwk import read_public_key

            read_public_key(path)

    def authenticator(self, settings: Settings) -> JwtBearer | None:
        own = settings.of(JwtSettings)
        return bearer_of(own) if own.jwt_issuer is not None else None


def bearer_of(settings: JwtSettings) -> JwtBearer:
    """The authenticator of the configured issuer's tokens; raises AccessError."""
    from parts.jwt.bearer import ClaimNames, JwtBearer
    from parts.jwt.jwk import read_public_key
    from parts.jwt.key_source import FetchedKeys, OneKey, discover_keys, fetch_keys
    from parts.jwt.verify import TokenPolicy

    issuer, audience = settings.jwt_issuer, settings.jwt_audience
    assert issuer is not None
    assert audience is not None
    names = ClaimNames(
        scope_prefix=settings.jwt_scope_prefix,
        scopes=settings.jwt_scopes_claim,
        granted=frozenset(Scope(name) for name in words(settings.jwt_granted_scopes)),
        tenant=settings.jwt_tenant_claim,
        models=settings.jwt_models_claim,
    )
    source: KeySource
    if settings.jwt_public_key_path is not None:
        source = OneKey(read_public_key(settings.jwt_public_key_path))
    elif settings.jwt_jwks_url is not None:
        source = FetchedKeys(partial(fetch_keys, settings.jwt_jwks_url))
    else:
        source = FetchedKeys(partial(discover_keys, issuer))
    policy = TokenPolicy(issuer, audience, audience_claim=settings.jwt_audience_claim)
    return JwtBearer(source, policy, names)


AUTH: Final = _Jwt()
