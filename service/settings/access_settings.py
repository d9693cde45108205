"""The settings about who may call, and about TLS; a part of service/settings/settings.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings

from engines.parts import facets
from service.settings.group import Group, words

Auth = Literal["auto", "off"]
SslMode = Literal["disabled", "tls", "mtls"]

_READS = ("metrics", "models", "render")
_MIN_KEY_CHARS = 16
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:\d{1,5})?")

# Each is a way to recognise callers, where it is set.
_KEYS = ("api_keys", "api_keys_path")
_WAYS = (*_KEYS, *(way for part in facets("settings", Group).values() for way in part.of_access))


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
        for name in words(value):
            if name not in _READS:
                raise ValueError(f"{name!r} is not one of {', '.join(_READS)}")
        return value

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, value: SecretStr | None) -> SecretStr | None:
        keys = words(value.get_secret_value()) if value else []
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
        for origin in words(value):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin; use scheme, host and port only, in lower "
                    f"case, as in https://chat.example or http://localhost:3000"
                )
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
        ways = ["NIM_" + field.upper() for field in _KEYS if info.data.get(field)]
        ways += ["NIM_SSL_MODE=mtls"] if info.data.get("ssl_mode") == "mtls" else []
        if value == "off" and ways:
            raise ValueError(f"it contradicts {ways[0]}; unset one of them")
        return value

    @field_validator("api_keys_path", "ssl_key_path", "ssl_certs_path")
    @classmethod
    def _expand_path(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value else value

    @property
    def has_auth(self) -> bool:
        """Whether any way to recognise callers is configured."""
        return self.ssl_mode == "mtls" or any(getattr(self, field) for field in _WAYS)

    @property
    def api_key_list(self) -> list[str]:
        return words(self.api_keys.get_secret_value()) if self.api_keys else []

    @property
    def cors_origins(self) -> tuple[str, ...]:
        return tuple(words(self.cors_allow_origins))

    @property
    def open_reads(self) -> tuple[str, ...]:
        """The routes that need no key."""
        return tuple(words(self.read_without_key))
