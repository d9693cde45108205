"""Safe by default: a server that others can reach and that has no keys makes one for itself."""

from __future__ import annotations

import logging

from pydantic import SecretStr

from auth.address import is_loopback
from auth.key_text import new_key
from service.settings import Settings

log = logging.getLogger("harmonium")


def with_made_key(settings: Settings) -> Settings:
    """The settings, with a fresh key where callers must be known and no way is configured."""
    if settings.auth == "off" or settings.has_auth or is_loopback(settings.server_host):
        return settings
    return settings.model_copy(update={"api_keys": SecretStr(new_key()[0])})


def tell_access(settings: Settings, *, is_made: bool) -> None:
    """Say who may call; a made key goes to standard output and never to the log."""
    host = settings.server_host
    if is_made:
        print(f"API key of this run, not shown again: {settings.api_key_list[0]}", flush=True)
        log.info(
            "No keys are configured and %s is open to others: a key was made for this run and "
            "printed on standard output. NIM_API_KEYS or NIM_API_KEYS_PATH sets lasting ones, "
            "NIM_AUTH=off lets everyone in.",
            host,
        )
    elif settings.auth == "off" and not is_loopback(host):
        log.warning("NIM_AUTH=off: whoever reaches %s may use this server.", host)
