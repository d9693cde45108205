"""Responses with the part that compacts."""

from __future__ import annotations

from tests.parts.responses.conftest import body, make_client, make_runtime, named, typed_events
from tests.parts.responses.socket.conftest import serve
from tests.service.conftest import harmony_ids
from tests.service.remembering import model, wired

__all__ = [
    "body",
    "harmony_ids",
    "make_client",
    "make_runtime",
    "model",
    "named",
    "serve",
    "typed_events",
    "wired",
]
