"""Tenants on the native engine: what one has asked, no other can find out by the prefix cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

HARMONIUM = str(Path(sys.executable).parent / "harmonium")
KEYS = ("first-tenants-key", "second-tenants-key")


@pytest.fixture(scope="module")
def locked(start_server: Callable[..., Any]) -> Iterator[Any]:
    server = start_server(["env", f"NIM_API_KEYS={','.join(KEYS)}", HARMONIUM, "serve"])
    yield server
    assert server.interrupt() == 0, server.log.read_text()


def num_cached(server: Any, key: str, prompt: str) -> int:
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 1,
    }
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def test_a_prefix_is_cached_for_its_own_tenant_alone(locked: Any) -> None:
    prompt = "The merger is announced on Monday, tell nobody. " * 8
    first, second = KEYS
    assert num_cached(locked, first, prompt) == 0
    assert num_cached(locked, second, prompt) == 0, "the other tenant's prompt could be guessed"
    assert num_cached(locked, first, prompt) > 0
    assert num_cached(locked, second, prompt) > 0
