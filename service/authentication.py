"""Who may call, as the settings say."""

from __future__ import annotations

from auth.api_keys import ApiKeys
from auth.base import Authenticator
from auth.chain import Chain
from auth.key_store import KeyStore
from service.settings import Settings


def authenticator_of(settings: Settings) -> Authenticator | None:
    """The configured ways in, None when there are none; raises KeyStoreError."""
    ways: list[Authenticator] = []
    if settings.api_keys_path is not None:
        store = KeyStore(settings.api_keys_path)
        store.load()
        ways.append(store)
    if settings.api_key_list:
        ways.append(ApiKeys(settings.api_key_list))
    return Chain(ways) if ways else None
