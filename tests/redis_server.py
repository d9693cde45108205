"""A real Redis of a test's own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

PATIENCE_S = 60


def start_redis(path: Path) -> subprocess.Popen[bytes]:
    """A server on this socket that answers; skips where there is no redis-server to start."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here: install Debian's package redis-server to test with it")
    path.unlink(missing_ok=True)
    command = [program, "--port", "0", "--unixsocket", str(path), "--save", ""]
    process = subprocess.Popen(command, cwd=path.parent, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not answers(path):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def answers(path: Path) -> bool:
    """The file of a socket is there before the server listens."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(1)
        try:
            asking.connect(str(path))
            asking.sendall(b"PING\r\n")
            return asking.recv(16).startswith(b"+PONG")
        except OSError:
            return False
