"""Requests in Anthropic's shape, and their events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.service.conftest import chat_body, events, harmony_ids, make_client, make_runtime
from tests.service.over_http import serve
from tests.service.remembering import model, wired

__all__ = [
    "chat_body",
    "events",
    "harmony_ids",
    "make_client",
    "make_runtime",
    "model",
    "serve",
    "wired",
]


@pytest.fixture
def message_body() -> Callable[..., dict[str, Any]]:
    """A minimal valid request, changed as asked."""

    def body(**changes: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Hello!"}]
        return {"model": "gpt-oss-20b", "max_tokens": 1000, "messages": messages} | changes

    return body


@pytest.fixture
def typed_events() -> Callable[[str], list[dict[str, Any]]]:
    """The events of an SSE text; each one's name must be its type."""

    def parse(text: str) -> list[dict[str, Any]]:
        parsed = []
        for block in text.split("\n\n")[:-1]:
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            parsed.append(event)
        return parsed

    return parse
