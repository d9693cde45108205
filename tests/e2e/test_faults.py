"""What a client and an orchestrator see when the engine dies and when the server stops."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import psutil
import pytest
from openai import OpenAI

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer

ENDLESS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello!"}],
    "logit_bias": {"200002": -100, "200007": -100, "200012": -100},
}


@pytest.fixture(scope="module")
def own_server(start_server: StartServer) -> Server:
    """A server whose engine is killed, and that is stopped last of all."""
    return start_server()


def text_of(part: Any) -> str:
    """Thoughts and answer of a message, or of a piece of one."""
    return f"{part.model_extra.get('reasoning') or ''}{part.content or ''}"


@pytest.mark.parametrize("wish", [{"temperature": 0}, {"temperature": 1.5, "seed": 7}])
def test_a_stream_outlives_the_engine_and_reads_as_if_nothing_had_happened(
    own_server: Server, wish: dict[str, Any]
) -> None:
    client: Any = OpenAI(base_url=f"{own_server.url}/v1", api_key="unused", max_retries=0)
    asked: dict[str, Any] = {
        "model": client.models.list().data[0].id, "max_tokens": 200, **ENDLESS, **wish,
    }  # fmt: skip
    undisturbed = client.chat.completions.create(**asked)
    chunks = client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **asked
    )
    killed, words, usage = own_server.engine(), "", None
    for number, chunk in enumerate(chunks):
        if number == 5:
            killed.kill()
        words += "".join(text_of(choice.delta) for choice in chunk.choices)
        usage = chunk.usage
    assert own_server.engine().pid != killed.pid
    assert words == text_of(undisturbed.choices[0].message)
    assert usage is not None
    assert usage.completion_tokens == undisturbed.usage.completion_tokens == 200
    client.close()


def test_with_two_replicas_one_may_die_and_the_service_stays_ready(
    start_server: StartServer, tmp_path: Path
) -> None:
    command = [str(Path(sys.executable).parent / "harmonium"), "serve", "--replicas=2"]
    server = start_server(command=command, folder=tmp_path)
    client: Any = OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    model = client.models.list().data[0].id
    asked: dict[str, Any] = {"model": model, "max_tokens": 200, "temperature": 0, **ENDLESS}
    undisturbed = client.chat.completions.create(**asked)
    streams = [client.chat.completions.create(stream=True, **asked) for _ in range(2)]
    first = [next(iter(stream)) for stream in streams]
    engines = [
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "engines.process.host" in " ".join(child.cmdline())
    ]
    assert len(engines) == 2
    engines[0].kill()
    assert server.ready_status() == 200
    for begun, stream in zip(first, streams, strict=True):
        words = "".join(text_of(c.delta) for chunk in [begun, *stream] for c in chunk.choices)
        assert words == text_of(undisturbed.choices[0].message)
    client.close()
    assert server.interrupt() == 0


@pytest.mark.faults
def test_memory_that_runs_out_costs_requests_and_comes_back(start_server: StartServer) -> None:
    """The real engine, no longer given memory by the kernel."""
    own_server = start_server()
    client = OpenAI(base_url=f"{own_server.url}/v1", api_key="unused", max_retries=0)
    model = client.models.list().data[0].id
    engine = own_server.engine()
    engine.rlimit(psutil.RLIMIT_AS, (engine.memory_info().vms - (300 << 20), psutil.RLIM_INFINITY))
    lost = set()
    for number in range(2):
        messages: Any = [{"role": "user", "content": f"{number} " + "word " * 3400}]
        try:
            client.chat.completions.create(model=model, messages=messages, max_tokens=2)
        except openai.APIStatusError as error:
            lost.add((error.status_code, error.code))
    assert lost <= {(503, "out_of_memory"), (503, "engine_dead"), (503, "not_ready")}
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have died of it, and be another now
        engine.rlimit(psutil.RLIMIT_AS, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    own_server.wait_for_ready()
    client.chat.completions.create(model=model, messages=messages, max_tokens=2)
    own_server.wait_for_metric("gpu_cache_usage_perc", 0.0)
    client.close()
    assert own_server.interrupt() == 0


def test_ctrl_c_lets_a_running_stream_finish_and_leaves_no_process(own_server: Server) -> None:
    model = httpx.get(f"{own_server.url}/v1/models", timeout=60).json()["data"][0]["id"]
    body = ENDLESS | {"model": model, "stream": True, "max_tokens": 200}
    children = psutil.Process(own_server.process.pid).children(recursive=True)
    with httpx.stream(
        "POST", f"{own_server.url}/v1/chat/completions", json=body, timeout=60
    ) as response:
        lines = response.iter_lines()
        next(lines)
        own_server.process.send_signal(2)
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert not any('"error"' in line for line in rest)
    assert own_server.process.wait(timeout=60) == 0, own_server.log.read_text()
    assert psutil.wait_procs(children, timeout=60)[1] == []


def test_the_log_tells_a_person_what_was_found_and_chosen(own_server: Server) -> None:
    log = own_server.log.read_text()
    assert "no GPU" in log
    assert "nano" in log
    assert "curl" in log
    assert "Traceback" not in log
