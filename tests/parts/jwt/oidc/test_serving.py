"""`harmonium serve` with a real OpenID provider behind it that rotates its keys and goes down."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.oidc

PATIENCE_S = 180  # the cool-down between two fetches of keys is 15 s


def status(url: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.get(f"{url}/v1/models", headers=headers, timeout=60).status_code


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_keys_rotate_while_it_serves_and_an_outage_is_survived(provider: Any, serve: Any) -> None:
    server = serve(NIM_JWT_ISSUER=provider.issuer, NIM_JWT_AUDIENCE="urn:harmonium")
    url = server.url
    old = provider.token()
    assert status(url, old) == 200
    provider.rotate()
    new = provider.token("ES256")
    # Refused until the keys may be fetched again, and never slowed once it can be verified.
    wait_for(lambda: status(url, new) == 200)
    assert status(url, old) == 200
    body = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"Authorization": f"Bearer {new}"}
    answer = httpx2.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    provider.stop()
    assert status(url, new) == 200
    assert status(url, provider.idp.token(aud="urn:other")) in (401, 429)


def test_without_its_provider_it_says_that_it_cannot_tell(provider: Any, serve: Any) -> None:
    token = provider.token()
    provider.stop()
    server = serve(NIM_JWT_ISSUER=provider.issuer, NIM_JWT_AUDIENCE="urn:harmonium")
    headers = {"Authorization": f"Bearer {token}"}
    refused = httpx2.get(f"{server.url}/v1/models", headers=headers, timeout=60)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "auth_unavailable"
    assert refused.headers["retry-after"]
