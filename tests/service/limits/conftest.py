"""Callers with limits of their own, and a Redis to count in."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from auth.base import Credentials, Principal, PrincipalLimits

HELLO = "<|channel|>final<|message|>Hello there, how are you?<|return|>"


@dataclass(frozen=True)
class Named:
    """Knows every caller by what they say: their key is their name, their tenant its first part."""

    limits: PrincipalLimits | None = None

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        name = credentials.value
        return Principal(name, tenant_id=name.partition("-")[0], limits=self.limits)


@pytest.fixture
def named() -> Callable[..., Named]:
    def make(**limits: Any) -> Named:
        return Named(PrincipalLimits(**limits) if limits else None)

    return make


@pytest.fixture
def hello() -> str:
    return HELLO


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis of our own, where there is a redis-server to start."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here: install Debian's package redis-server to test with it")
    socket = tmp_path_factory.mktemp("redis") / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(socket), "--save", ""]
    with subprocess.Popen(command, cwd=socket.parent, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 10
        while not socket.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"unix://{socket}"
        process.terminate()
