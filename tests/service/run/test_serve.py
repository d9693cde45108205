"""`harmonium serve` as a process: its log, its signals, its refusals, its settings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from profiles.checkpoints.compact import bundled_nano
from tests import plain
from tests.profiles.hub import Fault, serving
from tests.profiles.store.test_store import shard

Fixture = Callable[..., Any]

PROGRAM = Path(__file__).parents[1] / "serve_scripted.py"
PATIENCE_S = 180  # generous: the machine may be busy
BODY = {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]}


class Serving:
    """A running server; its log is read line by line as it comes."""

    def __init__(self, options: dict[str, Any], *flags: str, **environment: str) -> None:
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(options), "serve", "--server-port=0", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._grown:
                self.lines.append(line)
                self._grown.notify_all()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str) -> str:
        """The first line with the text; fails with the log if the process ends without it."""
        with self._grown:
            self._grown.wait_for(
                lambda: self._find(text) or self.process.poll() is not None, PATIENCE_S
            )
        if self.process.poll() is not None:
            self._reader.join(PATIENCE_S)
        line = self._find(text)
        assert line is not None, f"no {text!r} in:\n{self.log}"
        return line

    def _find(self, text: str) -> str | None:
        return next((line for line in self.lines if text in line), None)

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def url(self) -> str:
        return self.wait_for("Ready after").split(" on ")[-1].strip()

    def until_ready_is(self, status: int, word: str = "") -> None:
        """Wait for an answer of the readiness probe."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ready = plain.get(f"{self.url}/v1/health/ready", timeout=PATIENCE_S)
            if ready.status_code == status and word in ready.text:
                return
            assert time.monotonic() < deadline, f"{ready.text}\n{self.log}"
            time.sleep(0.02)

    def exit_code(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


@pytest.fixture
def script(harmony_ids: Fixture) -> list[int]:
    return list(harmony_ids("<|channel|>final<|message|>" + "word " * 300 + "<|return|>"))


@pytest.fixture
def serve(script: list[int]) -> Iterator[Fixture]:
    started: list[Serving] = []

    def start(*flags: str, step_s: float = 0.0, options: Any = None, **environment: str) -> Serving:
        options = {"script": script, "step_s": step_s} if options is None else options
        started.append(Serving(options, *flags, **environment))
        return started[-1]

    yield start
    for server in started:
        server.end()


def test_the_log_tells_the_way_to_a_first_answer_and_a_hangup_ends_it(
    serve: Fixture,
) -> None:
    server = serve()
    url = server.url
    found = [server.wait_for(text) for text in ("Hardware:", "Profile:", "Why:", "Model:")]
    assert "no GPU" in found[0]
    assert "native-cpu" in found[1]
    _, pasted_url, _, header, _, body = shlex.split(server.wait_for("curl "))
    name, value = header.split(": ")
    answer = plain.post(pasted_url, headers={name: value}, content=body, timeout=PATIENCE_S)
    assert answer.json()["choices"][0]["message"]["content"].startswith("word word")
    assert pasted_url == f"{url}/v1/chat/completions"
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert children
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        server.process.send_signal(number)
        server.wait_for(f"{number.name} means nothing")
    assert plain.get(f"{url}/v1/health/ready", timeout=PATIENCE_S).status_code == 200
    server.process.send_signal(signal.SIGHUP)  # its terminal is gone
    assert server.exit_code() == 0
    server.wait_for("Stopping")
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert "Traceback" not in server.log


def test_it_listens_but_is_not_ready_while_the_engine_loads(serve: Fixture) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = serve(f"--server-port={port}", options={"script": [1], "start_s": 600})
    server.wait_for("by the native engine")
    url = f"http://127.0.0.1:{port}/v1/health"
    assert plain.get(f"{url}/live", timeout=PATIENCE_S).status_code == 200
    response = plain.get(f"{url}/ready", timeout=PATIENCE_S)
    assert response.status_code == 503
    assert "loading" in response.json()["error"]["message"]
    server.process.terminate()
    assert server.exit_code() == 0
    assert "Traceback" not in server.log


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def half_a_model(gate: threading.Event) -> Iterator[str]:
    """A mirror that sends half of the weights, and the rest once the gate is open; its URL."""
    files = {"config.json": (bundled_nano() / "config.json").read_bytes()}
    files["model.safetensors"] = shard("a", num_bytes=40_000_000)
    with serving({f"m/nano/{name}": content for name, content in files.items()}) as mirror:

        def wait() -> None:
            gate.wait(PATIENCE_S)

        first = Fault(cut_after=20_000_000)
        mirror.faults["model.safetensors"] = [first, *[Fault(before=wait) for _ in range(20)]]
        try:
            yield f"{mirror.url}/m/nano"
        finally:
            gate.set()


def test_it_answers_with_its_progress_while_the_model_is_fetched(
    serve: Fixture, tmp_path: Path
) -> None:
    gate, port = threading.Event(), free_port()
    url = f"http://127.0.0.1:{port}/v1"
    with half_a_model(gate) as place:
        environment = {"NIM_MODEL_PATH": place, "NIM_CACHE_PATH": str(tmp_path)}
        server = serve(f"--server-port={port}", options={"script": [1]}, **environment)
        deadline, said = time.monotonic() + PATIENCE_S, ""
        while not re.search(r"downloading nano: \d+\.\d of 40\.0 MB \([1-9]", said):
            assert time.monotonic() < deadline, f"{said}\n{server.log}"
            with contextlib.suppress(httpx.TransportError):  # before it listens
                ready = plain.get(f"{url}/health/ready", timeout=PATIENCE_S)
                said = ready.json()["error"]["message"]
            time.sleep(0.05)
        assert ready.status_code == 503
        assert plain.get(f"{url}/health/live", timeout=PATIENCE_S).status_code == 200
        counted = plain.get(f"{url}/metrics", timeout=PATIENCE_S).text
        assert 'harmonium_download_size_bytes{model="nano"} 4.00' in counted
        [have] = re.findall(r'harmonium_download_bytes\{model="nano"\} (\S+)', counted)
        assert 0 < float(have) < 40_000_000
        refused = plain.post(f"{url}/chat/completions", json=BODY, timeout=PATIENCE_S)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        gate.set()
        server.wait_for("Ready after")
    counted = plain.get(f"{url}/metrics", timeout=PATIENCE_S).text
    assert 'harmonium_download_size_bytes{model="nano"} 0.0' in counted


def test_ctrl_c_in_a_download_says_what_is_kept_and_the_next_start_goes_on(
    serve: Fixture, tmp_path: Path
) -> None:
    gate = threading.Event()
    with half_a_model(gate) as place:
        environment = {"NIM_MODEL_PATH": place, "NIM_CACHE_PATH": str(tmp_path)}
        server = serve(options={"script": [1]}, **environment)
        deadline = time.monotonic() + PATIENCE_S
        while not sum(part.stat().st_size for part in tmp_path.rglob(".partial/*")):
            assert time.monotonic() < deadline, server.log
            time.sleep(0.05)
        server.process.send_signal(signal.SIGINT)
        kept = server.wait_for("The download was stopped; what came is kept in")
        assert server.exit_code() == 0
        assert "Traceback" not in server.log
        assert str(tmp_path) in kept
        gate.set()
        again = serve(options={"script": [1]}, **environment)
        assert "MB of them are here already" in again.wait_for("Fetching nano")
        again.wait_for("Ready after")


def test_a_drain_refuses_new_requests_and_lets_the_running_end(serve: Fixture) -> None:
    server = serve(step_s=0.01)
    body = BODY | {"stream": True}
    path = f"{server.url}/v1/chat/completions"
    with plain.stream("POST", path, json=body, timeout=PATIENCE_S) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.terminate()
        server.wait_for("Stopping")
        assert plain.get(f"{server.url}/v1/health/ready", timeout=PATIENCE_S).status_code == 503
        assert plain.get(f"{server.url}/v1/health/live", timeout=PATIENCE_S).status_code == 200
        refused = plain.post(path, json=BODY, timeout=PATIENCE_S)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "not_ready"
        rest = list(lines)
    assert '"finish_reason":"stop"' in rest[-4]
    assert rest[-2] == "data: [DONE]"
    assert server.exit_code() == 0


def test_what_outlives_the_grace_ends_with_an_error(serve: Fixture) -> None:
    server = serve("--drain-grace-s=0.1", step_s=0.1)
    body = BODY | {"stream": True}
    path = f"{server.url}/v1/chat/completions"
    with plain.stream("POST", path, json=body, timeout=PATIENCE_S) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.terminate()
        rest = list(lines)
    assert '"code":"engine_dead"' in rest[-4]
    assert rest[-2] == "data: [DONE]"
    assert server.exit_code() == 0


@pytest.mark.slow  # tests/service/run/workers does it to two workers
def test_a_second_ctrl_c_does_not_wait(serve: Fixture) -> None:
    server = serve(step_s=1.0)
    body = BODY | {"stream": True}
    path = f"{server.url}/v1/chat/completions"
    children = psutil.Process(server.process.pid).children(recursive=True)
    with plain.stream("POST", path, json=body, timeout=PATIENCE_S) as response:
        next(response.iter_lines())
        server.process.send_signal(signal.SIGINT)
        server.wait_for("Stopping")
        server.process.send_signal(signal.SIGINT)
        assert server.exit_code() == 130
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert "Traceback" not in server.log


@pytest.mark.slow  # tests/service/run/workers and tests/e2e do it too
def test_a_killed_engine_turns_readiness_and_comes_back_to_its_streams(serve: Fixture) -> None:
    server = serve(step_s=0.02)
    path = f"{server.url}/v1/chat/completions"
    children = psutil.Process(server.process.pid).children()
    [engine] = [child for child in children if "engines.process.host" in child.cmdline()]
    with plain.stream("POST", path, json=BODY | {"stream": True}, timeout=PATIENCE_S) as response:
        lines = response.iter_lines()
        next(lines)
        engine.kill()
        server.until_ready_is(503, "SIGKILL")
        rest = list(lines)
    assert '"finish_reason":"stop"' in rest[-4]
    assert rest[-2] == "data: [DONE]"
    server.wait_for("started again")
    server.until_ready_is(200)
    assert plain.post(path, json=BODY | {"max_tokens": 9}, timeout=PATIENCE_S).status_code == 200
    metrics = plain.get(f"{server.url}/v1/metrics", timeout=PATIENCE_S).text
    assert 'harmonium_engine_restarts_total{model="nano"} 1.0' in metrics


@pytest.mark.slow  # tests/engines/replicas does it to two scripted engines
def test_one_of_two_engines_may_die_and_the_service_stays_ready(serve: Fixture) -> None:
    server = serve("--replicas=2", step_s=0.02)
    path = f"{server.url}/v1/chat/completions"
    children = psutil.Process(server.process.pid).children()
    engines = [child for child in children if "engines.process.host" in child.cmdline()]
    assert len(engines) == 2
    with (
        plain.stream("POST", path, json=BODY | {"stream": True}, timeout=PATIENCE_S) as one,
        plain.stream("POST", path, json=BODY | {"stream": True}, timeout=PATIENCE_S) as two,
    ):
        streams = [one.iter_lines(), two.iter_lines()]
        begun = [next(lines) for lines in streams]
        engines[0].kill()
        server.until_ready_is(200)
        for first, lines in zip(begun, streams, strict=True):
            answer = [first, *lines]
            assert "".join(answer).count("word") == 300
            assert '"finish_reason":"stop"' in answer[-4]
            assert answer[-2] == "data: [DONE]"
    server.process.send_signal(signal.SIGINT)
    assert server.exit_code() == 0
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []


def test_a_port_in_use_is_told_before_any_engine_starts(serve: Fixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(f"--server-port={port}")
        assert server.exit_code() == 1
    for word in ("127.0.0.1", str(port), "NIM_SERVER_PORT"):
        assert word in server.log
    assert "engine" not in server.log
    assert "Traceback" not in server.log


def test_an_engine_that_cannot_start_ends_it_with_the_engines_words(serve: Fixture) -> None:
    """Which a log that shall hold errors only holds, too."""
    start_error = "the weights are made of cheese"
    server = serve(options={"script": [1], "start_error": start_error}, NIM_LOG_LEVEL="error")
    assert server.exit_code() == 1
    assert start_error in server.log
    assert "Traceback" not in server.log
    assert "INFO" not in server.log


@pytest.mark.parametrize(
    ("environment", "code", "words"),
    [
        ({"NIM_SSE_KEEPALIVE_S": "often"}, 2, ("NIM_SSE_KEEPALIVE_S", "often")),
        ({"NIM_MODEL_NAME": "gpt-17"}, 1, ("gpt-17", "nano")),
        *(
            pytest.param({name: words[-1]}, 1, words, marks=pytest.mark.slow)
            for name, words in {
                "NIM_MODEL_PROFILE": ("nonsense",),
                "NIM_MAX_MODEL_LEN": ("NIM_MAX_MODEL_LEN", "999999999"),
                "NIM_MODEL_PATH": ("/no/such/folder",),
                "NIM_SERVER_HOST": ("NIM_SERVER_HOST", "203.0.113.7"),
            }.items()
        ),
    ],
)
def test_a_setting_that_cannot_be_met_ends_it_with_the_reason(
    serve: Fixture, environment: dict[str, str], code: int, words: tuple[str, ...]
) -> None:
    server = serve(**environment)
    assert server.exit_code() == code
    assert all(word in server.log for word in words), server.log
    assert "Traceback" not in server.log


ONE, TWO = "one-key-of-the-test", "two-keys-of-the-test"


def test_settings_reach_what_they_set(serve: Fixture, tmp_path: Path) -> None:
    server = serve(
        "--max-model-len=128",
        NIM_SERVED_MODEL_NAME="my/model",
        NIM_API_KEYS=f"{ONE},{TWO}",
        NIM_JSONL_LOGGING="1",
        NIM_LOG_LEVEL="debug",
        NIM_MAX_BODY_BYTES="1024",
        NIM_CACHE_PATH=str(tmp_path),
        NIM_SERVER_PROT="1",
    )
    warned = json.loads(server.wait_for("NIM_SERVER_PROT"))
    assert warned["level"] == "WARNING"
    assert "NIM_SERVER_PORT" in warned["message"]
    ready = json.loads(server.wait_for("Ready after"))
    url = ready["message"].split(" on ")[-1]
    assert "a context of 128 tokens" in server.wait_for("Model:")
    assert "Authorization: Bearer" in server.wait_for("curl ")
    with plain.Client(base_url=url, headers={"X-API-Key": TWO}, timeout=PATIENCE_S) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "my/model"
        assert client.post("/v1/chat/completions", content=b" " * 2000).status_code == 413
        assert client.get("/v1/models", headers={"X-API-Key": "three"}).status_code == 401
    assert '"GET"' in server.wait_for('"/v1/models"')
    server.process.terminate()
    assert server.exit_code() == 0
    assert all(json.loads(line)["message"] for line in server.lines)
    assert ONE not in server.log
    assert TWO not in server.log
