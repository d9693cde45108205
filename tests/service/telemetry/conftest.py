"""A collector in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

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
        everything = httpx.get(f"{self._web}/received", timeout=60).json()
        return [(transport, message) for transport, kind, message in everything if kind == signal]

    def delay(self, seconds: float) -> None:
        httpx.get(f"{self._web}/delay/{seconds}", timeout=60)


@pytest.fixture
def start_collector() -> Iterator[Callable[[], Collector]]:
    """Start a receiver; it ends with the test."""
    processes = []

    def start() -> Collector:
        process = subprocess.Popen(
            [sys.executable, str(RECEIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        return Collector(json.loads(process.stdout.readline()))

    yield start
    for process in processes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


@pytest.fixture
def collector(start_collector: Callable[[], Collector]) -> Collector:
    return start_collector()
