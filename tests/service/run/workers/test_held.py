"""A worker that is held for ever is replaced, and never keeps the server from ending."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from service.run.pool import END_S, HANG_TIMEOUT_S

pytestmark = pytest.mark.faults

Fixture = Callable[..., Any]
GRACE_S = 1


def test_a_held_worker_is_replaced_and_sigterm_ends_the_server(serve: Fixture) -> None:
    """Nothing of the process runs, as when a library computes for ever and keeps the GIL."""
    server = serve("--api-workers=1", f"--drain-grace-s={GRACE_S}").ready()
    [held], engine = server.workers, server.engine
    held.send_signal(signal.SIGSTOP)
    with pytest.raises(httpx2.TimeoutException):
        httpx2.get(f"{server.url}/v1/health/live", timeout=1)
    assert f"did not respond for {HANG_TIMEOUT_S:.0f} s" in server.wait_for("restarting it in")
    server.until(lambda: len(server.workers) == 1 and server.workers[0].pid != held.pid)
    assert httpx2.get(f"{server.url}/v1/health/live", timeout=60).status_code == 200
    assert server.engine.pid == engine.pid

    server.workers[0].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert time.monotonic() - began < GRACE_S + 2 * END_S
