"""`harmonium serve` with two API workers, a scripted engine, and a way to each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests import plain

PROGRAM = Path(__file__).parents[2] / "serve_scripted.py"
PATIENCE_S = 60


class Server:
    """The parent, its log in a file, and clients that are known to be one worker's."""

    def __init__(self, options: dict[str, Any], folder: Path, *flags: str) -> None:
        self.folder = folder
        self._log = folder / "log"
        self._clients: list[httpx2.Client] = []
        command = [sys.executable, str(PROGRAM), json.dumps(options), "serve", "--server-port=0"]
        flags = ("--api-workers=2", f"--cache-path={folder / 'cache'}", *flags)
        self.temp = Path(tempfile.mkdtemp())  # short: sockets' paths are bounded
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *flags], stderr=log, env={**os.environ, "TMPDIR": str(self.temp)}
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> str:
        """The first line with the text; fails with the log if it does not come."""
        self.until(lambda: text in self.log)
        return next(line for line in self.log.splitlines() if text in line)

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    @property
    def url(self) -> str:
        return self.wait_for("Ready after").split(" on ")[-1].strip()

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def ready(self) -> Server:
        """Wait until it serves."""
        self.wait_for("Ready after")
        return self

    @property
    def workers(self) -> list[psutil.Process]:
        return [child for child in self.children if "service.run.worker" in child.cmdline()]

    @property
    def engine(self) -> psutil.Process:
        return next(child for child in self.children if "engines.process.host" in child.cmdline())

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def num_connections(self) -> list[int]:
        """Of each worker, as the kernel sees them."""
        return [
            sum(c.laddr.port == self.port and bool(c.raddr) for c in worker.net_connections("tcp"))
            for worker in self.workers
        ]

    def client_of(self, worker: psutil.Process) -> httpx2.Client:
        """A client whose one connection that worker has accepted."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            client = plain.Client(base_url=self.url, timeout=PATIENCE_S)
            self._clients.append(client)
            with client.stream("GET", "/v1/health/live") as response:
                port = response.extensions["network_stream"].get_extra_info("client_addr")[1]
                response.read()
            if any(c.raddr and c.raddr.port == port for c in worker.net_connections("tcp")):
                return client
            assert time.monotonic() < deadline, "the worker takes no connection"

    def exit_code(self) -> int:
        """Wait for the end of the parent and see that nothing outlives it."""
        code = self.process.wait(PATIENCE_S)
        assert not list(self.temp.iterdir()), "files were left behind"
        return code

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.temp, ignore_errors=True)  # a process that ends removes its files too


@pytest.fixture
def serve(harmony_ids: Callable[[str], Any], tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*flags: str, **options: Any) -> Server:
        script = list(harmony_ids("<|channel|>final<|message|>" + "word " * 300 + "<|return|>"))
        started.append(Server({"script": script} | options, tmp_path, *flags))
        return started[-1]

    yield start
    for server in started:
        server.end()
