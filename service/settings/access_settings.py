"""The settings about who may call, and about TLS; a part of service/settings/settings.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from auth.address import check_url
from auth.base import Scope

Auth = Literal["auto", "off"]
SslMode = Literal["disabled", "tls", "mtls"]

_READS = ("metrics", "models", "render")
_MIN_KEY_CHARS = 16
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:\d{1,5})?")
_GRANTABLE = [scope.value for scope in Scope if scope is not Scope.ADMIN]

# Each is a way to recognise callers, where it is set.
_WAYS = ("api_keys", "api_keys_path", "jwt_issuer")


class AccessSettings(BaseSettings):
    """Keys, tokens and certificates"""

    api_keys: SecretStr | None = Field(
        None,
        description="Accepted API keys, comma-separated, at least 16 characters each. Every "
        "key has all scopes.",
    )
    api_keys_path: Path | None = Field(
        None,
        description="A key file written by `harmonium keys`, or a folder of them, such as a "
        "mounted Secret. Changes take effect within a second.",
    )
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
    ssl_key_path: Path | None = Field(None, description="The server's private key, a PEM file.")
    ssl_certs_path: Path | None = Field(
        None, description="The server's certificate chain, a PEM file."
    )
    ssl_ca_certs_path: Path | None = Field(
        None, description="The CAs that sign client certificates in mode `mtls`, a PEM file."
    )
    ssl_mode: SslMode = Field(
        "disabled",
        validate_default=True,
        description="`tls`: HTTPS. `mtls`: HTTPS, and clients authenticate with a certificate.",
    )
    cors_allow_origins: str = Field(
        "",
        description="Origins of the web pages that may call this server from a browser, "
        "comma-separated, e.g. `https://chat.example,http://localhost:3000`. `*`: all. The "
        "playground may compare this server with those that are listed. Default: none.",
    )
    auth: Auth = Field(
        "auto",
        description="`auto`: callers must authenticate if keys, tokens or client certificates "
        "are configured. Otherwise a server on loopback is open, and any other server generates "
        "a key when it starts. It prints the key on a terminal, or writes it to "
        "`api-key-<port>` in the cache, or below `TMPDIR` if other hosts may open the cache's "
        "volume, readable by its owner only. `off`: no "
        "authentication.",
    )

    read_without_key: str = Field(
        "",
        description="Routes that need no key, comma-separated: `metrics` (/metrics, /v1/metrics),"
        " `models` (/v1/models), `render` (the render routes). NVIDIA's NIM Operator"
        " needs `metrics,models`; llm-d and KServe need all three.",
    )

    @field_validator("read_without_key")
    @classmethod
    def _check_reads(cls, value: str) -> str:
        for name in _words(value):
            if name not in _READS:
                raise ValueError(f"{name!r} is not one of {', '.join(_READS)}")
        return value

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, value: SecretStr | None) -> SecretStr | None:
        keys = _words(value.get_secret_value()) if value else []
        if value and not keys:
            raise ValueError("it contains an empty key, which would let everyone in")
        if any(len(key) < _MIN_KEY_CHARS for key in keys):
            raise ValueError(
                f"a key has fewer than {_MIN_KEY_CHARS} characters and is easy to guess; "
                f"generate one with `openssl rand -hex 32`"
            )
        return value

    @field_validator("cors_allow_origins")
    @classmethod
    def _check_origins(cls, value: str) -> str:
        for origin in _words(value):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin; use scheme, host and port only, in lower "
                    f"case, as in https://chat.example or http://localhost:3000"
                )
        return value

    @field_validator("jwt_granted_scopes")
    @classmethod
    def _check_scopes(cls, value: str) -> str:
        for name in _words(value):
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
        return value

    @field_validator("jwt_issuer")
    @classmethod
    def _check_issuer(cls, value: str | None, info: ValidationInfo) -> str | None:
        source = info.data.get("jwt_jwks_url") or info.data.get("jwt_public_key_path")
        if value is None and source:
            raise ValueError("keys that verify tokens are configured, but no issuer")
        if value is not None and not source:
            check_url(value)
        return value

    @field_validator("jwt_audience")
    @classmethod
    def _check_audience(cls, value: str | None, info: ValidationInfo) -> str | None:
        if bool(value) != bool(info.data.get("jwt_issuer")):
            raise ValueError("NIM_JWT_ISSUER and NIM_JWT_AUDIENCE must be set together")
        return value

    @field_validator("ssl_mode", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("ssl_mode")
    @classmethod
    def _check_ssl(cls, value: str, info: ValidationInfo) -> str:
        needed = {"tls": ("key", "certs"), "mtls": ("key", "certs", "ca_certs")}.get(value, ())
        for part in ("key", "certs", "ca_certs"):
            is_set, name = bool(info.data.get(f"ssl_{part}_path")), f"NIM_SSL_{part.upper()}_PATH"
            if is_set != (part in needed):
                raise ValueError(f"{name} {'has no effect' if is_set else 'is missing'} then")
        return value

    @field_validator("auth")
    @classmethod
    def _check_auth(cls, value: str, info: ValidationInfo) -> str:
        ways = ["NIM_" + field.upper() for field in _WAYS if info.data.get(field)]
        ways += ["NIM_SSL_MODE=mtls"] if info.data.get("ssl_mode") == "mtls" else []
        if value == "off" and ways:
            raise ValueError(f"it contradicts {ways[0]}; unset one of them")
        return value

    @field_validator("api_keys_path", "jwt_public_key_path", "ssl_key_path", "ssl_certs_path")
    @classmethod
    def _expand_path(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value else value

    @property
    def has_auth(self) -> bool:
        """Whether any way to recognise callers is configured."""
        return self.ssl_mode == "mtls" or any(getattr(self, field) for field in _WAYS)

    @property
    def api_key_list(self) -> list[str]:
        return _words(self.api_keys.get_secret_value()) if self.api_keys else []

    @property
    def cors_origins(self) -> tuple[str, ...]:
        return tuple(_words(self.cors_allow_origins))

    @property
    def open_reads(self) -> tuple[str, ...]:
        """The routes that need no key."""
        return tuple(_words(self.read_without_key))

    @property
    def jwt_scopes(self) -> frozenset[Scope]:
        """The scopes that every accepted token has."""
        return frozenset(Scope(name) for name in _words(self.jwt_granted_scopes))


def _words(joined: str) -> list[str]:
    """The comma-separated parts."""
    return [word.strip() for word in joined.split(",") if word.strip()]
