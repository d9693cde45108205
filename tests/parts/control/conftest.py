"""The fixtures of the service."""

from __future__ import annotations

from tests.service.conftest import (
    chat_body,
    events,
    harmony_ids,
    make_client,
    make_runtime,
)
from tests.service.run.workers.conftest import serve

__all__ = [
    "chat_body",
    "events",
    "harmony_ids",
    "make_client",
    "make_runtime",
    "serve",
]
