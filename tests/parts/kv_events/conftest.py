"""The fixtures of tests with a publisher, and of served ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from parts.kv_events.events import KvEvents
from parts.kv_events.publisher import KvEventPublisher
from tests.e2e.conftest import start_server
from tests.parts.kv_events.connecting import ANY_PORT, TOPIC, Publish, Reader

__all__ = ["start_server"]


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


@pytest.fixture
def publisher() -> Iterator[Publish]:
    """publisher(**fields of KvEvents, max_waiting_blocks=...): started, on ports of its own."""
    started: list[KvEventPublisher] = []

    def start(max_waiting_blocks: int = 1000, **fields: Any) -> KvEventPublisher:
        fields = {"endpoint": ANY_PORT, "replay_endpoint": ANY_PORT, "topic": TOPIC, **fields}
        each = KvEventPublisher(KvEvents(**fields), max_waiting_blocks)
        each.start()
        started.append(each)
        return each

    yield start
    for each in started:
        each.stop()
