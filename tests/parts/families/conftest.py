"""What all families of routes do alike; these tests need each of them."""

from __future__ import annotations

from engines.parts import folders
from tests.service.conftest import (
    brief_document,
    chat_body,
    events,
    fits,
    guide_of,
    harmony_ids,
    library,
    make_client,
    make_runtime,
    openai_sdk,
)

__all__ = [
    "brief_document",
    "chat_body",
    "events",
    "fits",
    "guide_of",
    "harmony_ids",
    "library",
    "make_client",
    "make_runtime",
    "openai_sdk",
]

# Where one was removed, there is nothing to compare; each has tests of its own.
collect_ignore_glob = (
    [] if {"completions", "messages", "responses"} <= folders().keys() else ["test_*.py"]
)
