"""A server started as a user starts it, on nano, with a cache of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import psutil
import pytest

from tests import plain

if TYPE_CHECKING:
    from openai import OpenAI

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()

# Another engine's environment: `make test-vllm` lets it serve nano to the same clients.
_ENGINE_PYTHON = os.environ.get("TEST_ENGINE_PYTHON")
_ENGINE = {
    "NIM_ENGINE_PYTHON": str(_ENGINE_PYTHON),
    "NIM_MODEL_PROFILE": f"{os.environ.get('TEST_ENGINE')}-cpu-fp32-tp1-pp1-balanced",
}
# A machine with a GPU would fetch a larger model; these tests know nano.
IS_GPU = Path("/dev/nvidiactl").exists()
_MODEL = {"NIM_MODEL_NAME": "nano"} if IS_GPU else {}
# Generous: the machine may be busy; start-up is measured by make bench.
READY_WITHIN_S = 900 if _ENGINE_PYTHON else 180

ENDLESS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello!"}],
    "logit_bias": {"200002": -100, "200007": -100, "200012": -100},
}


def blocks(language: str) -> list[str]:
    """The README's code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def without_make() -> str:
    """What the README says to those who have no make."""
    program = next(block for block in blocks("sh") if block.rstrip().endswith("harmonium serve"))
    assert len(program.splitlines()) == 3
    return program


def text_of(part: Any) -> str:
    """Thoughts and answer of a message, or of a piece of one."""
    return f"{part.model_extra.get('reasoning') or ''}{part.content or ''}"


@dataclass(frozen=True)
class Server:
    """A running `harmonium serve`."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def ready_status(self) -> int:
        """The status of /v1/health/ready, 0 while nothing listens."""
        try:
            return plain.get(f"{self.url}/v1/health/ready", timeout=60).status_code
        except httpx2.TransportError:
            return 0

    def wait_for_ready(self, status: int = 200) -> None:
        """Return once readiness answers `status`; fail with the log if it never does."""
        deadline = time.monotonic() + READY_WITHIN_S
        while self.ready_status() != status:
            exit_code = self.process.poll()
            assert exit_code is None, f"serve exited with {exit_code}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"never {status}:\n{self.log.read_text()}"
            time.sleep(0.02)

    def engines(self) -> list[psutil.Process]:
        """The engine processes, one for each replica."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "engines.process.host" in " ".join(child.cmdline())]

    def engine(self) -> psutil.Process:
        """The engine process, where there is one."""
        [engine] = self.engines()
        return engine

    def metric(self, name: str) -> float | None:
        """The value of a metric without labels, or the sum over its labels.

        None where it is missing, as the engine's are while it does not answer in time.
        """
        lines = plain.get(f"{self.url}/v1/metrics", timeout=60).text.splitlines()
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{"))
        ]
        return sum(values) if values else None

    def wait_for_metric(self, name: str, wanted: float) -> None:
        """Return once a metric has the wanted value."""
        deadline = time.monotonic() + READY_WITHIN_S
        while (value := self.metric(name)) != wanted:
            assert time.monotonic() < deadline, f"{name} stayed at {value}, wanted {wanted}"
            time.sleep(0.02)

    def interrupt(self) -> int:
        """Press Ctrl-C, which `harmonium serve` alone gets, and return the exit code."""
        started = psutil.Process(self.process.pid)
        below = (started, *started.children(recursive=True))
        next(each for each in below if "serve" in each.cmdline()).send_signal(signal.SIGINT)
        return self.process.wait(timeout=READY_WITHIN_S)


StartServer = Callable[..., Server]


def url_in(process: subprocess.Popen[str], log: Path) -> str:
    """Where a server listens, once its log says that it is ready."""
    deadline = time.monotonic() + READY_WITHIN_S
    while not (said := re.search(r"Ready after .* on (http://\S+)", log.read_text())):
        exit_code = process.poll()
        assert exit_code is None, f"serve exited with {exit_code}:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"never ready:\n{log.read_text()}"
        time.sleep(0.02)
    return said[1]


@contextmanager
def servers(nano_cache: Path, factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start servers on free ports; those that still run are stopped at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str] | None = None, folder: Path | None = None) -> Server:
        log = factory.mktemp("serve") / "log.txt"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("NIM_")},
            "NIM_SERVER_PORT": "0",
            "NIM_CACHE_PATH": str(nano_cache),
            **_MODEL,
            **(_ENGINE if _ENGINE_PYTHON else {}),
        }
        with log.open("w") as output:
            process = subprocess.Popen(
                command or [str(Path(sys.executable).parent / "harmonium"), "serve"],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                cwd=folder or log.parent,
                start_new_session=True,
            )
        started.append(process)
        server = Server(process, url_in(process, log), log)
        server.wait_for_ready()
        return server

    try:
        yield start
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(timeout=READY_WITHIN_S)


@pytest.fixture(scope="module")
def start_server(
    nano_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    """Start servers that end with the tests of their file."""
    with servers(nano_cache, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="package")
def server(nano_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server most tests share; it must survive them all and then drain cleanly.

    It is started by the README's three commands for those who have no make.
    """
    with servers(nano_cache, tmp_path_factory) as start:
        running = start(["sh", "-c", without_make()], folder=ROOT)
        yield running
        assert running.interrupt() == 0, running.log.read_text()


@pytest.fixture(scope="package")
def client(server: Server) -> Iterator[OpenAI]:
    from openai import OpenAI  # takes a second: not for all who collect

    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="package")
def model(server: Server) -> str:
    served: str = plain.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"]
    return served
