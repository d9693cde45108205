"""Asking an identity provider for its keys; blocking, for a thread."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import msgspec

from auth.address import check_url, is_loopback
from auth.jwk import PublicKey, keys_of

MAX_BYTES = 256 * 1024
TIMEOUT_S = 2.0
_DISCOVERY = "/.well-known/openid-configuration"


def fetch_keys(url: str) -> Mapping[str, PublicKey]:
    """The keys at a JWKS URL; raises OSError or ValueError."""
    keys = keys_of(get_json(url))
    if not keys:
        raise ValueError(f"{url} has no key that is fit to verify tokens")
    return keys


def discover_keys(issuer: str) -> Mapping[str, PublicKey]:
    """The keys that an issuer's discovery document names; raises OSError or ValueError."""
    url = issuer.rstrip("/") + _DISCOVERY
    document = get_json(url)
    if not isinstance(document, dict) or document.get("issuer") != issuer:
        raise ValueError(f"{url} does not speak for the issuer {issuer}")
    return fetch_keys(str(document.get("jwks_uri")))


def get_json(url: str) -> Any:
    """The JSON at a URL: no redirects, 256 KiB at most; raises OSError or ValueError."""
    check_url(url)
    is_local = is_loopback(urlsplit(url).hostname or "")
    proxies = [urllib.request.ProxyHandler({})] if is_local else []
    opener = urllib.request.build_opener(_NoRedirect, *proxies)
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    deadline = time.monotonic() + TIMEOUT_S
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            return msgspec.json.decode(_read(response, deadline))
    except HTTPError as error:
        error.close()
        raise OSError(f"{url} answers with status {error.code}") from None
    except HTTPException as error:
        raise OSError(f"{url} answers no HTTP: {type(error).__name__}") from None
    except RecursionError:
        raise ValueError(f"{url} answers with JSON that is nested too deep") from None


def _read(response: HTTPResponse, deadline: float) -> bytes:
    body = b""
    while chunk := response.read1(65536):
        body += chunk
        if len(body) > MAX_BYTES:
            raise ValueError(f"the answer is larger than {MAX_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer takes too long")
    return body


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any) -> None:
        """A redirect is an error: it could lead anywhere."""
