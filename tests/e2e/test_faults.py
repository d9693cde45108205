"""What a client and an orchestrator see when the engine dies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import openai
import psutil
import pytest
from openai import OpenAI

from tests.e2e.conftest import ENDLESS, text_of

if TYPE_CHECKING:
    from tests.e2e.conftest import Server, StartServer


@pytest.mark.slow  # engines/recovery, engines/contract and service/run do it with cheaper ones
def test_a_stream_outlives_the_engine_and_reads_as_if_nothing_had_happened(
    server: Server, client: Any, model: str
) -> None:
    wish = {"temperature": 1.5, "seed": 7}  # the greedy ones are below
    asked: dict[str, Any] = {"model": model, "max_tokens": 60, **ENDLESS, **wish}
    undisturbed = client.chat.completions.create(**asked)
    chunks = client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **asked
    )
    killed, words, usage = server.engine(), "", None
    for number, chunk in enumerate(chunks):
        if number == 5:
            killed.kill()
        words += "".join(text_of(choice.delta) for choice in chunk.choices)
        usage = chunk.usage
    assert server.engine().pid != killed.pid
    assert words == text_of(undisturbed.choices[0].message)
    assert usage is not None
    assert usage.completion_tokens == undisturbed.usage.completion_tokens == 60


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
    own_server.wait_for_metric("harmonium_engine_kv_usage_ratio", 0.0)
    client.close()
    assert own_server.interrupt() == 0


def test_the_log_tells_a_person_what_was_found_and_chosen(server: Server) -> None:
    log = server.log.read_text()
    assert "no GPU" in log
    assert "nano" in log
    assert "curl" in log
    assert "Traceback" not in log
