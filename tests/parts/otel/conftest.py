"""A collector in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import plain
from tests.service.conftest import chat_body, events, harmony_ids, make_client, make_runtime

__all__ = ["chat_body", "events", "harmony_ids", "make_client", "make_runtime"]

RECEIVER = Path(__file__).with_name("otlp_receiver.py")


class Collector:
    """What a test asks of the receiver."""

    def __init__(self, ports: dict[str, int]) -> None:
        self._web = f"http://127.0.0.1:{ports['http']}"
        self.endpoints = {
            "http/protobuf": self._web,
            "grpc": f"http://127.0.0.1:{ports['grpc']}",
        }

    def received(self, signal: str) -> list[tuple[str, Any]]:
        """(transport, message) of one signal, in the order of arrival."""
        everything = plain.get(f"{self._web}/received", timeout=60).json()
        return [(transport, message) for transport, kind, message in everything if kind == signal]

    def forget(self) -> None:
        plain.get(f"{self._web}/forget", timeout=60)

    def delay(self, seconds: float) -> None:
        plain.get(f"{self._web}/delay/{seconds}", timeout=60)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A receiver in a process of its own."""
    with subprocess.Popen(
        [sys.executable, str(RECEIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:  # closing its stdin ends it
        assert process.stdout is not None
        yield Collector(json.loads(process.stdout.readline()))


@pytest.fixture
def own_collector() -> Iterator[Collector]:
    """One for a test that leaves requests to it unanswered, or needs another."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="package")
def _shared() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def collector(_shared: Collector) -> Collector:
    """A receiver that has received nothing."""
    _shared.forget()
    return _shared
