"""Keys as the command makes them, and what an authenticator says of credentials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from auth.base import AuthError, Credentials, InvalidCredentials, Principal
from service.__main__ import main
from service.admission.lifecycle import Lifecycle
from service.chat_format import format_named
from service.run.server import create_app
from service.runtime import Runtime, ServedModel
from service.telemetry.metrics import Metrics
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

CreateKey = Callable[..., str]

SCRIPTED = Path(__file__).parents[1] / "service" / "serve_scripted.py"
ENGINE = {"script": [200005, 17196, 200008, 12194, 200002]}  # <|channel|>final<|message|>Hi


@pytest.fixture
def create_key(capsys: pytest.CaptureFixture[str]) -> CreateKey:
    """Runs `harmonium keys create` and returns the key that it prints."""

    def create(path: Path, *options: str, name: str = "ci") -> str:
        capsys.readouterr()
        assert main(["keys", "--path", str(path), "create", name, *options]) == 0
        return capsys.readouterr().out.strip()

    return create


class Serving:
    """A running `harmonium serve` with a scripted engine; what it writes is read as it comes."""

    def __init__(self, *flags: str, **environment: str) -> None:
        self.out: list[str] = []
        self.log: list[str] = []
        self._grown = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPTED), json.dumps(ENGINE), "serve", "--server-port=0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        streams = ((self.process.stdout, self.out), (self.process.stderr, self.log))
        self._readers = [threading.Thread(target=self._read, args=pair) for pair in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            with self._grown:
                lines.append(line)
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def wait_for(self, text: str) -> str:
        """The first line of the log with the text; fails if the process ends without it."""

        def found() -> str | None:
            return next((line for line in self.log if text in line), None)

        with self._grown:
            self._grown.wait_for(lambda: found() or self.process.poll() is not None, 180)
        line = found()
        assert line is not None, f"no {text!r} in:\n{''.join(self.log)}"
        return line

    @property
    def url(self) -> str:
        return self.wait_for("Ready after").split(" on ")[-1].strip()

    def end(self) -> int:
        """Stop it and return the exit code; by force where it does not heed."""
        self.process.terminate()
        try:
            code = self.process.wait(60)
        finally:
            self.process.kill()
            for reader in self._readers:
                reader.join(60)
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()
        return code


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(*flags: str, **environment: str) -> Serving:
        started.append(Serving(*flags, **environment))
        return started[-1]

    yield start
    for server in started:
        server.end()


class Directory:
    """Knows callers by a word, or fails so."""

    def __init__(self, **principals: Principal | AuthError) -> None:
        self._principals = principals

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        if credentials.value not in self._principals:
            raise InvalidCredentials("unknown word")
        found = self._principals[credentials.value]
        if isinstance(found, AuthError):
            raise found
        return found


@pytest.fixture
async def client_of() -> AsyncIterator[Callable[..., Any]]:
    opened: list[tuple[httpx2.AsyncClient, FakeEngine]] = []

    async def start(
        *,
        is_local: bool = False,
        cors_origins: tuple[str, ...] = (),
        read_without_key: tuple[str, ...] = (),
        **principals: Principal | AuthError,
    ) -> httpx2.AsyncClient:
        """Callers are known by these words; with none of them and `is_local` it is open."""
        engine = FakeEngine(FakeOptions(script=(13225, 200002)))
        await engine.start()
        lifecycle = Lifecycle()
        lifecycle.mark_ready()
        model = ServedModel("m", "openai/m", "0" * 64, 0, aliases=("openai/m",))
        directory = None if is_local else Directory(**principals)
        runtime = Runtime(
            engine,
            model,
            format_named("harmony"),
            Metrics("m"),
            lifecycle,
            authenticator=directory,
            is_local=is_local,
            cors_origins=cors_origins,
            read_without_key=read_without_key,
        )
        transport = httpx2.ASGITransport(create_app(runtime), client=("192.0.2.7", 1))
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
        opened.append((client, engine))
        return client

    yield start
    for client, engine in opened:
        await client.aclose()
        await engine.stop()
