"""Containers of the image under test, confined as a cluster confines them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests import loopback

ROOT = Path(__file__).parents[2]
IMAGE = os.environ.get("IMAGE", "localhost/harmonium:latest")
FLAVOUR = os.environ.get("FLAVOUR", "cpu")
READY_LIMIT_S = 120 if FLAVOUR in ("cpu", "cuda") else 400  # vLLM imports for long
STOP_LIMIT_S = 60
CONFINED = (
    "--network=host",
    "--read-only",
    "--tmpfs=/tmp",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--shm-size=1g",  # vLLM's processes speak through 160 MiB of it
)
KEY = "hmk-of-this-test"
HEADERS = {"Authorization": f"Bearer {KEY}"}
QUESTION = {"messages": [{"role": "user", "content": "Hello! Who are you?"}], "max_tokens": 200}


def podman(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "tools" / "packaging" / "podman", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def checked(*arguments: str) -> str:
    result = podman(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    port: int
    ready_s: float

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.name, *command)

    def url(self, path: str) -> str:
        return f"http://{loopback.IN_URL}:{self.port}{path}"


def wait_until_ready(name: str, port: int) -> float:
    """Seconds until readiness says 200; fails with the log when the container ends first."""
    start = time.monotonic()
    while (elapsed_s := time.monotonic() - start) < READY_LIMIT_S:
        try:
            if httpx2.get(f"http://{loopback.IN_URL}:{port}/v1/health/ready", timeout=2).is_success:
                return elapsed_s
        except httpx2.TransportError:
            pass
        if checked("inspect", "--format", "{{.State.Running}}", name) != "true":
            break
        time.sleep(0.1)
    log = podman("logs", name)
    pytest.fail(f"not ready after {elapsed_s:.0f} s\n{log.stdout}{log.stderr}")


@contextmanager
def run(*options: str, keys: str = KEY) -> Iterator[Container]:
    port = loopback.free_port()
    name = f"harmonium-test-{port}"
    environment = (
        f"--env=NIM_SERVER_PORT={port}",
        f"--env=NIM_API_KEYS={keys}",
        "--env=NIM_MODEL_NAME=nano",
    )
    checked("run", "--detach", "--name", name, *CONFINED, *environment, *options, IMAGE)
    try:
        yield Container(name, port, wait_until_ready(name, port))
    finally:
        podman("rm", "--force", "--time=5", "--volumes", name)
