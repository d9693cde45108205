"""Process start to ready: `harmonium serve` on nano, as a user runs it, the cache warm."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GIVE_UP_AFTER_S = 120


def seconds_to_ready(cache_dir: Path) -> float:
    """Start the server, wait for readiness, stop it; return the seconds from start to ready."""
    started = time.perf_counter()
    with serving(cache_dir):
        return time.perf_counter() - started


@contextmanager
def serving(cache_dir: Path, give_up_after_s: float = GIVE_UP_AFTER_S) -> Iterator[str]:
    """Serve as a user does, nano unless the environment says otherwise; yield the URL once it is
    ready."""
    port = free_port()
    environment = {
        **os.environ,
        "NIM_SERVER_PORT": str(port),
        "NIM_CACHE_PATH": str(cache_dir),
    }
    give_up_at = time.perf_counter() + give_up_after_s
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "harmonium"), "serve"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not is_ready(port):
            if process.poll() is not None or time.perf_counter() > give_up_at:
                raise RuntimeError("harmonium serve did not become ready")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/health/ready") as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
