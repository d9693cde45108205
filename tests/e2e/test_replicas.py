"""Two engines behind one server: its tenants, an engine that dies, and its end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from openai import OpenAI

from tests.e2e.conftest import ENDLESS, IS_GPU, Server, StartServer, text_of

# By default tests/engines/replicas kills one of two, tests/service/run does so to a whole server,
# and tests/auth/test_access.py and tests/engines/contract keep tenants' prefixes apart.
pytestmark = pytest.mark.slow

KEYS = ("first-tenants-key", "second-tenants-key")


@pytest.fixture(scope="module")
def replicated(start_server: StartServer) -> Server:
    """A server that the last test of this file stops."""
    if IS_GPU and len([*Path("/dev").glob("nvidia[0-9]*")]) < 2:
        pytest.skip("two replicas want two GPUs, or none")
    harmonium = str(Path(sys.executable).parent / "harmonium")
    keys = f"NIM_API_KEYS={','.join(KEYS)}"
    return start_server(["env", keys, harmonium, "serve", "--replicas=2"])


@pytest.fixture
def tenant(replicated: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{replicated.url}/v1", api_key=KEYS[0], max_retries=0) as client:
        yield client


def num_cached(server: Server, key: str, prompt: str) -> int:
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 1,
    }
    answer = httpx2.post(
        f"{server.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def test_a_prefix_is_cached_for_its_own_tenant_alone(replicated: Server) -> None:
    found = []
    for day in ("Monday", "Tuesday", "Friday"):  # a busy engine may run, and so cache, one twice
        prompt = f"The merger is announced on {day}, tell nobody. " * 8
        found.append([num_cached(replicated, key, prompt) > 0 for key in (*KEYS, *KEYS)])
        if found[-1] == [False, False, True, True]:
            return
    pytest.fail(f"what another asked could be guessed, or is not cached: {found}")


def test_one_may_die_and_the_service_stays_ready(replicated: Server, tenant: Any) -> None:
    asked: dict[str, Any] = {"model": "nano", "max_tokens": 80, **ENDLESS}
    wishes: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 1.5, "seed": 7}]
    undisturbed = [tenant.chat.completions.create(**asked | wish) for wish in wishes]
    streams = [tenant.chat.completions.create(stream=True, **asked | wish) for wish in wishes]
    first = [next(iter(stream)) for stream in streams]
    engines = replicated.engines()
    assert len(engines) == 2
    engines[0].kill()
    replicated.wait_for_ready()
    for whole, begun, stream in zip(undisturbed, first, streams, strict=True):
        words = "".join(text_of(c.delta) for chunk in [begun, *stream] for c in chunk.choices)
        assert words == text_of(whole.choices[0].message)


def test_ctrl_c_lets_a_running_stream_finish_and_leaves_no_process(
    replicated: Server, tenant: Any
) -> None:
    children = psutil.Process(replicated.process.pid).children(recursive=True)
    stream = tenant.chat.completions.create(model="nano", max_tokens=80, stream=True, **ENDLESS)
    chunks = [next(stream)]
    replicated.process.send_signal(signal.SIGINT)
    chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert replicated.process.wait(timeout=60) == 0, replicated.log.read_text()
    assert psutil.wait_procs(children, timeout=60)[1] == []
