"""Asking an identity provider for its keys."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from auth.address import check_url, is_loopback
from auth.jwk import KeySet, keys_of

MAX_BYTES = 256 * 1024
TIMEOUT_S = 2.0  # for one whole answer, however it trickles
_DISCOVERY = "/.well-known/openid-configuration"
# No compression: a small answer must not unfold into a large one.
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}


async def fetch_keys(url: str) -> KeySet:
    """The keys at a JWKS URL; raises OSError or ValueError."""
    found = keys_of(await get_json(url))
    if not found.keys:
        raise ValueError(f"{url} has no key that is fit to verify tokens: {dict(found.unfit)}")
    return found


async def discover_keys(issuer: str) -> KeySet:
    """The keys that an issuer's discovery document names; raises OSError or ValueError."""
    url = issuer.rstrip("/") + _DISCOVERY
    document = await get_json(url)
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise ValueError(f"{url} does not speak for the issuer {issuer}")
    return await fetch_keys(str(document.get("jwks_uri")))


async def get_json(url: str) -> Any:
    """The JSON at a URL: no redirects, 256 KiB and 2 s at most; raises OSError or ValueError."""
    check_url(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return msgspec.json.decode(await _body(url))
    except TimeoutError:
        raise TimeoutError(f"{url} gave no whole answer within {TIMEOUT_S:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(f"{url} cannot be asked: {type(error).__name__} {error}") from None
    except RecursionError:
        raise ValueError(f"{url} answers with JSON that is nested too deep") from None


async def _body(url: str) -> bytes:
    # The system's authorities, which take a while to read; a proxy has no business with loopback.
    trust = await asyncio.to_thread(ssl.create_default_context)
    is_local = is_loopback(urlsplit(url).hostname or "")
    async with (
        httpx.AsyncClient(verify=trust, trust_env=not is_local, timeout=TIMEOUT_S) as client,
        client.stream("GET", url, headers=_HEADERS) as response,
    ):
        if response.status_code != 200:
            raise OSError(f"{url} answers with status {response.status_code}")
        body = b""
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_BYTES:
                raise ValueError(f"the answer is larger than {MAX_BYTES} bytes")
        return body
