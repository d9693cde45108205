"""The queue before a collector: it never waits, and what is lost is counted once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from parts.otel.outbox import Outbox


class Collector:
    """Holds the first batch until it is released, then takes it and all others, or none."""

    def __init__(self, takes: bool = True) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self.lost: list[tuple[str, int]] = []
        self._takes = takes

    def send(self, batch: Sequence[Any]) -> bool:
        self.entered.set()
        return self.released.wait(60) and self._takes

    def begun(self, max_items: int = 100) -> Outbox:
        """Return an outbox whose first item is being sent."""
        outbox = Outbox("traces", self.send, lambda *lost: self.lost.append(lost), max_items)
        outbox.put(0)
        outbox._wanted.set()
        assert self.entered.wait(60)
        return outbox


def test_what_a_full_queue_drops_is_counted() -> None:
    collector = Collector()
    outbox = collector.begun(max_items=100)
    for item in range(150):
        outbox.put(item)
    assert collector.lost == [("traces", 1)] * 50
    collector.released.set()
    outbox.close(5)
    assert len(collector.lost) == 50


@pytest.mark.parametrize("takes", [True, False])
def test_what_is_being_sent_at_the_end_is_counted_once(
    takes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    collector = Collector(takes)
    outbox = collector.begun()
    outbox.put(1)
    outbox.close(timeout_s=0.01)
    assert collector.lost == [("traces", 2)]
    collector.released.set()
    outbox._thread.join(60)
    assert collector.lost == [("traces", 2)]
    assert caplog.messages == []  # the log may have ended with the server
