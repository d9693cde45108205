"""Who may call, as the settings say."""

from __future__ import annotations

from importlib import import_module

from auth.api_keys import ApiKeys
from auth.base import Authenticator
from auth.chain import Chain
from auth.client_certificate import ClientCertificate
from auth.key_folder import KeyFolder
from auth.key_store import KeyStore
from service.http.tls import tls_of
from service.settings.settings import Settings


def authenticator_of(settings: Settings) -> Authenticator | None:
    """The configured ways in, None when there are none; raises AccessError."""
    ways: list[Authenticator] = []
    if settings.api_keys_path is not None:
        store = KeyStore(settings.api_keys_path)
        store.load()
        ways.append(store)
    if settings.jwt_issuer is not None:
        ways.append(import_module("service.run.token_authentication").bearer_of(settings))
    if settings.ssl_mode == "mtls":
        ways.append(ClientCertificate())
    if settings.api_key_list:
        ways.append(ApiKeys(settings.api_key_list))  # the last: any text may be such a key
    return Chain(ways) if ways else None


def check_access(settings: Settings) -> None:
    """Raise AccessError for files that could not be used, before anything is started for long."""
    if settings.api_keys_path is not None:
        KeyFolder(settings.api_keys_path).check()
    if settings.jwt_public_key_path is not None:
        import_module("auth.jwk").read_public_key(settings.jwt_public_key_path)
    tls_of(settings)
