"""`harmonium serve` on the scripted engine, and the faults that are done to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import httpx2
import psutil
import pytest

from tests import loopback
from tests.faults.small_disk import SmallDisk

PROGRAM = Path(__file__).parents[1] / "service/serve_scripted.py"
NATIVE = ["-m", "service"]  # what a user runs, with the native engine
PATIENCE_S = 180
TEXT = "<|channel|>final<|message|>word word word<|return|>"


class Serving:
    """A running server that is ready."""

    def __init__(
        self,
        program: Sequence[str],
        log: IO[str],
        prefix: Sequence[str] = (),
        **environment: str,
    ) -> None:
        """`prefix`: a command that ends by running the one that follows it."""
        port = loopback.free_port()
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("NIM_")}
        self.process = subprocess.Popen(
            [*prefix, *program, "serve", f"--server-port={port}"],
            stdout=log,
            stderr=log,
            env={**inherited, **environment},
        )
        self.client = httpx2.Client(base_url=f"http://{loopback.IN_URL}:{port}", timeout=PATIENCE_S)

    def ready_status(self) -> int:
        try:
            return self.client.get("/v1/health/ready").status_code
        except httpx2.TransportError:
            return 0

    def wait_for_ready(self, status: int = 200) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.ready_status() != status:
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def post(self, path: str, **body: Any) -> httpx2.Response:
        return self.client.post(path, json={"model": "nano", **body})

    def chat(self, **body: Any) -> httpx2.Response:
        messages = [{"role": "user", "content": "Hi"}]
        return self.post("/v1/chat/completions", messages=messages, **body)

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    @property
    def engine(self) -> psutil.Process:
        return next(child for child in self.children if "engines.process.host" in child.cmdline())

    @property
    def api(self) -> psutil.Process:
        """The process that answers."""
        return next(child for child in self.children if "service.run.worker" in child.cmdline())

    def limit(self, resource: int, value: int) -> None:
        """Set a soft limit of the process that answers."""
        process = self.api
        process.rlimit(resource, (value, process.rlimit(resource)[1]))

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.interrupt()


Serve = Callable[..., Serving]


@pytest.fixture
def serve(harmony_ids: Any, tmp_path: Path) -> Iterator[Serve]:
    """Start a server whose log goes to `log`; it must be ready before it is returned."""
    started: list[Serving] = []

    def start(
        log: Path | None = None,
        options: Any = None,
        disk: SmallDisk | None = None,
        prefix: Sequence[str] = (),
        *,
        is_native: bool = False,
        **environment: str,
    ) -> Serving:
        options = {"script": harmony_ids(TEXT)} | (options or {})
        scripted = [str(PROGRAM), json.dumps(options)]
        program = [sys.executable, *(NATIVE if is_native else scripted)]
        environment = {"NIM_CACHE_PATH": str(tmp_path / "cache")} | environment
        with (log or tmp_path / "log.txt").open("w") as file:
            prefix = disk.command if disk else prefix
            started.append(Serving(program, file, prefix, **environment))
        if disk is not None:
            disk.pid = started[-1].process.pid
        started[-1].wait_for_ready()
        return started[-1]

    yield start
    for server in started:
        server.end()


@pytest.fixture
def harmony_ids() -> Callable[[str], list[int]]:
    """Ids of Harmony text as a model would write it."""
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    return lambda text: encoding.encode(text, allowed_special="all")
