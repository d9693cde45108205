"""A server started as a user starts it, on nano, with a cache of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from openai import OpenAI

READY_WITHIN_S = 180  # generous: the machine may be busy; start-up is measured by make bench


@dataclass(frozen=True)
class Server:
    """A running `harmonium serve`."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def ready_status(self) -> int:
        """The status of /v1/health/ready, 0 while nothing listens."""
        try:
            return httpx.get(f"{self.url}/v1/health/ready", timeout=60).status_code
        except httpx.TransportError:
            return 0

    def wait_for_ready(self, status: int = 200) -> None:
        """Return once readiness answers `status`; fail with the log if it never does."""
        deadline = time.monotonic() + READY_WITHIN_S
        while self.ready_status() != status:
            exit_code = self.process.poll()
            assert exit_code is None, f"serve exited with {exit_code}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"never {status}:\n{self.log.read_text()}"
            time.sleep(0.02)

    def engine(self) -> psutil.Process:
        """The engine process."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        engines = [
            child for child in children if "engines.process.host" in " ".join(child.cmdline())
        ]
        assert len(engines) == 1, f"expected one engine process, found {engines}"
        return engines[0]

    def metric(self, name: str) -> float:
        """The value of a metric without labels, or the sum over its labels."""
        lines = httpx.get(f"{self.url}/v1/metrics", timeout=60).text.splitlines()
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{"))
        ]
        assert values, f"no metric {name}"
        return sum(values)

    def wait_for_metric(self, name: str, wanted: float) -> None:
        """Return once a metric has the wanted value."""
        deadline = time.monotonic() + READY_WITHIN_S
        while (value := self.metric(name)) != wanted:
            assert time.monotonic() < deadline, f"{name} stayed at {value}, wanted {wanted}"
            time.sleep(0.02)

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=READY_WITHIN_S)


@pytest.fixture(scope="package")
def free_port() -> Callable[[], int]:
    """Finds a port nobody listens on."""
    return _free_port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


StartServer = Callable[..., Server]


@pytest.fixture(scope="package")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model cache for the whole run, so that nano is expanded once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="package")
def start_server(
    cache_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartServer]:
    started: list[Server] = []

    def start(command: list[str] | None = None, folder: Path | None = None) -> Server:
        port = _free_port()
        log = tmp_path_factory.mktemp("serve") / "log.txt"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("NIM_")},
            "NIM_SERVER_PORT": str(port),
            "NIM_CACHE_PATH": str(cache_dir),
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
        server = Server(process, f"http://127.0.0.1:{port}", log)
        started.append(server)
        server.wait_for_ready()
        return server

    yield start
    for server in started:
        if server.process.poll() is None:
            os.killpg(server.process.pid, signal.SIGINT)
            server.process.wait(timeout=READY_WITHIN_S)


@pytest.fixture(scope="package")
def server(start_server: StartServer) -> Iterator[Server]:
    """The server most tests share; it must survive them all and then drain cleanly."""
    running = start_server()
    yield running
    assert running.interrupt() == 0, running.log.read_text()


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="package")
def model(server: Server) -> str:
    served: str = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"]
    return served
