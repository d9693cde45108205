"""`harmonium serve` as a process: its log, its signals, its refusals, its settings."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.run.termination import TERMINATED
from tests import loopback, plain
from tests.service.run.serving import BODY, PATIENCE_S

Fixture = Callable[..., Any]


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
        server.wait_for(f"{number.name} is ignored")
    assert plain.get(f"{url}/v1/health/ready", timeout=PATIENCE_S).status_code == 200
    server.process.send_signal(signal.SIGHUP)  # its terminal is gone
    assert server.exit_code() == 0
    server.wait_for("Stopping")
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert "Traceback" not in server.log


def test_a_home_that_cannot_be_written_costs_no_start(serve: Fixture) -> None:
    server = serve(NIM_CACHE_PATH="", HOME="/dev/null")
    told = server.wait_for("cannot be used by user")
    assert "/dev/null/.cache/harmonium (NIM_CACHE_PATH)" in told
    folder = Path(told.partition(" kept there is in ")[2].split()[0])
    answer = plain.post(f"{server.url}/v1/chat/completions", json=BODY, timeout=PATIENCE_S)
    assert answer.status_code == 200
    assert folder.is_dir()
    server.process.terminate()
    assert server.exit_code() == 0
    assert not folder.exists()


def test_it_listens_but_is_not_ready_while_the_engine_loads(serve: Fixture) -> None:
    port = loopback.free_port()
    server = serve(f"--server-port={port}", options={"script": [1], "start_s": 600})
    server.wait_for("native engine")
    url = f"http://{loopback.IN_URL}:{port}/v1/health"
    assert plain.get(f"{url}/live", timeout=PATIENCE_S).status_code == 200
    response = plain.get(f"{url}/ready", timeout=PATIENCE_S)
    assert response.status_code == 503
    assert "loading" in response.json()["error"]["message"]
    server.process.terminate()
    assert server.exit_code() == 0
    assert "Traceback" not in server.log


def test_a_stop_in_the_first_second_is_heard(serve: Fixture) -> None:
    """As process 1 of a container it would be ignored, until the container is killed."""
    server = serve()
    server.wait_for("Harmonium")
    server.process.terminate()
    assert server.exit_code() == 0
    assert "Stopped" in server.log
    assert "Traceback" not in server.log


def test_a_stop_that_comes_before_python_handles_it_waits() -> None:
    """The image starts the program with the signal blocked."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        process = subprocess.Popen([sys.executable, "-m", "service", "serve", "nano"])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    process.terminate()
    assert process.wait(PATIENCE_S) == TERMINATED


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
    server.wait_for("the engine process is ready again")
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


@pytest.mark.slow
def test_it_serves_where_its_parent_closed_stdin_and_stdout(serve: Fixture) -> None:
    """No socket gets their numbers, which its children take for their streams."""
    server = serve(before=("sh", "-c", 'exec "$0" "$@" <&- >&-'))
    answer = plain.post(f"{server.url}/v1/chat/completions", json=BODY, timeout=PATIENCE_S)
    assert answer.status_code == 200
    server.process.terminate()
    assert server.exit_code() == 0


def test_a_port_in_use_is_told_before_any_engine_starts(serve: Fixture) -> None:
    with loopback.listening() as taken:
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
        ({"NIM_DRAIN_GRACE_S": "often"}, 2, ("NIM_DRAIN_GRACE_S", "often")),
        ({"NIM_MODEL_NAME": "gpt-17"}, 1, ("gpt-17", "nano")),
        *(
            pytest.param({name: words[-1]}, code, words, marks=pytest.mark.slow)
            for name, code, words in (
                ("NIM_MODEL_PROFILE", 1, ("nonsense",)),
                ("NIM_MAX_MODEL_LEN", 3, ("NIM_MAX_MODEL_LEN", "999999999")),  # no profile is left
                ("NIM_MODEL_PATH", 1, ("/no/such/folder",)),
                ("NIM_SERVER_HOST", 1, ("NIM_SERVER_HOST", "203.0.113.7")),
            )
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
    assert "context of 128 tokens" in server.wait_for("Model:")
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
