"""What a server that is starting answers: its progress, and what a stop keeps."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from profiles.checkpoints.compact import bundled_nano
from tests import loopback, plain
from tests.profiles.hub import Fault, serving
from tests.profiles.store.test_store import shard
from tests.service.run.serving import BODY, PATIENCE_S

Fixture = Callable[..., Any]


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
    gate, port = threading.Event(), loopback.free_port()
    url = f"http://{loopback.IN_URL}:{port}/v1"
    with half_a_model(gate) as place:
        environment = {"NIM_MODEL_PATH": place, "NIM_CACHE_PATH": str(tmp_path)}
        server = serve(f"--server-port={port}", options={"script": [1]}, **environment)
        deadline, said = time.monotonic() + PATIENCE_S, ""
        while not re.search(r"downloading nano: \d+\.\d of 40\.0 MB \([1-9]", said):
            assert time.monotonic() < deadline, f"{said}\n{server.log}"
            with contextlib.suppress(httpx2.TransportError):  # before it listens
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
        server.wait_for("Fetching nano from")
        server.process.send_signal(signal.SIGINT)
        kept = server.wait_for("The download was stopped. The downloaded part is kept in")
        assert server.exit_code() == 0
        assert "Traceback" not in server.log
        assert str(tmp_path) in kept
        gate.set()
        again = serve(options={"script": [1]}, **environment)
        assert "MB of them downloaded already" in again.wait_for("Fetching nano from")
        again.wait_for("Ready after")


def test_it_names_the_step_of_its_start(serve: Fixture) -> None:
    port = loopback.free_port()
    url = f"http://{loopback.IN_URL}:{port}/v1"
    options = {"script": [1], "start_s": 600, "start_step": "compiling GPU kernels, number 7"}
    server = serve(f"--server-port={port}", options=options)
    deadline, said = time.monotonic() + PATIENCE_S, ""
    while "compiling GPU kernels, number 7" not in said:
        assert time.monotonic() < deadline, f"{said}\n{server.log}"
        with contextlib.suppress(httpx2.TransportError):
            said = plain.get(f"{url}/health/ready", timeout=PATIENCE_S).text
        time.sleep(0.05)
    counted = plain.get(f"{url}/metrics", timeout=PATIENCE_S).text
    assert 'harmonium_starting{model="nano"} 1.0' in counted
    [started_s] = re.findall(r'harmonium_start_duration_seconds\{model="nano"\} (\S+)', counted)
    assert 0 < float(started_s) < PATIENCE_S
    used = dict(re.findall(r'process_resident_memory_bytes\{process="(\w+)"\} (\S+)', counted))
    assert used.keys() == {"server", "api", "engine"}
    assert min(map(float, used.values())) > 10e6


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_download_to_cache_says_what_is_kept(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    gate = threading.Event()
    with half_a_model(gate) as place:
        command = [sys.executable, "-m", "service", "download-to-cache", "--model-uri", place]
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NIM_CACHE_PATH": str(tmp_path)},
        )
        deadline = time.monotonic() + PATIENCE_S
        while not sum(part.stat().st_size for part in tmp_path.rglob(".partial/*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        gate.set()  # the connection that waits ends at its next bytes
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert f"What was downloaded is kept in {tmp_path}" in said
    assert "Traceback" not in said
