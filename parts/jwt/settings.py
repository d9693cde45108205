"""The settings of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, ValidationInfo, field_validator

from auth.address import check_url
from auth.base import Scope
from service.settings.group import Group, words

_GRANTABLE = [scope.value for scope in Scope if scope is not Scope.ADMIN]


class JwtSettings(Group):
    """Tokens"""

    of_access: ClassVar[tuple[str, ...]] = ("jwt_issuer",)
    constants: ClassVar[Mapping[str, str]] = {
        "jwt_max_lifetime_s": "86400",
        "jwt_max_stale_s": "21600",
    }

    jwt_jwks_url: str | None = Field(
        None,
        description="URL of the keys that verify tokens (JWKS). Default: the URL in the issuer's "
        "discovery document.",
    )
    jwt_public_key_path: Path | None = Field(
        None,
        description="A PEM file with the key that verifies tokens. The server then fetches no "
        "keys.",
    )
    jwt_issuer: str | None = Field(
        None,
        validate_default=True,
        description="The issuer of accepted JWT bearer tokens: the exact `iss`, an https URL.",
    )
    jwt_audience: str | None = Field(
        None, validate_default=True, description="The audience that tokens must have in `aud`."
    )
    jwt_audience_claim: str | None = Field(
        None,
        description="The claim that holds the audience in tokens without `aud`, e.g. "
        "`client_id` for Amazon Cognito. By default, tokens without `aud` are refused.",
    )
    jwt_scope_prefix: str = Field(
        "", description="Prefix of Harmonium's scopes in tokens, e.g. `harmonium.`."
    )
    jwt_scopes_claim: str | None = Field(
        None,
        description="The claim that lists a token's scopes, e.g. `roles` for Entra's "
        "application tokens. Default: `scope` and `scp`.",
    )
    jwt_granted_scopes: str = Field(
        "",
        description="Additional scopes of every accepted token, e.g. `inference,models` for "
        "Kubernetes service accounts, whose tokens have no scopes.",
    )
    jwt_tenant_claim: str | None = Field(
        None,
        description="The claim that names the tenant. By default, each subject is its own tenant.",
    )
    jwt_models_claim: str | None = Field(
        None, description="The claim that lists the models a caller may use. Default: all."
    )

    @field_validator("jwt_granted_scopes")
    @classmethod
    def _check_scopes(cls, value: str) -> str:
        for name in words(value):
            if name not in _GRANTABLE:
                raise ValueError(f"{name!r} is not one of {', '.join(_GRANTABLE)}")
        return value

    @field_validator("jwt_jwks_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_url(value)
        return value

    @field_validator("jwt_public_key_path")
    @classmethod
    def _check_one_source(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value and info.data.get("jwt_jwks_url"):
            raise ValueError("NIM_JWT_JWKS_URL is set as well; unset one of them")
        return value.expanduser() if value else value

    @field_validator("jwt_issuer")
    @classmethod
    def _check_issuer(cls, value: str | None, info: ValidationInfo) -> str | None:
        source = info.data.get("jwt_jwks_url") or info.data.get("jwt_public_key_path")
        if value is None and source:
            raise ValueError("keys that verify tokens are configured, but no issuer")
        if value is not None and not source:
            check_url(value)
        if value is not None and info.data.get("auth") == "off":
            raise ValueError("it contradicts NIM_AUTH=off; unset one of them")
        return value

    @field_validator("jwt_audience")
    @classmethod
    def _check_audience(cls, value: str | None, info: ValidationInfo) -> str | None:
        if bool(value) != bool(info.data.get("jwt_issuer")):
            raise ValueError("NIM_JWT_ISSUER and NIM_JWT_AUDIENCE must be set together")
        return value


SETTINGS = JwtSettings
