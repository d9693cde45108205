"""Conformance suites that others wrote; what fails of them is listed here, each with the reason."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.conftest import HERE, INSTALLED, ROOT, Server, serving
from tests.loopback import free_port

Fixture = Callable[..., Any]

pytestmark = pytest.mark.clients

SUITES: Final = INSTALLED / "suites"
NODE: Final = INSTALLED / "suites-node"
LLAMA_TESTS: Final = INSTALLED / "llama.cpp" / "tools" / "server" / "tests"
CHECKOUT: Final = "HARMONIUM_OPEN_RESPONSES"

# Of llama.cpp's server tests.
NOT_AS_LLAMA: Final = {
    "test_anthropic_tool_result_with_image": "wants an error; here a line of the prompt",
    "test_anthropic_vision_format_accepted": "wants a 500 for a picture; here a 400",
    "test_anthropic_vision_base64_with_multimodal_model": "a picture from the hub",
    "test_anthropic_thinking_history_in_template": "wants <think> of Qwen3's template",
}


@pytest.fixture(scope="module")
def open_responses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the specification's names of events, which the suites cannot ask for."""
    folder = tmp_path_factory.mktemp("suites")
    with serving(folder, flags=("--open-responses",)) as server:
        yield server


@pytest.fixture
def node_bin() -> Path:
    """Node 24, which these suites need."""
    return next(NODE.glob("node_modules/node-linux-*/bin"))


def test_open_responses(open_responses: Server, run: Fixture, node_bin: Path) -> None:
    if not (checkout := os.environ.get(CHECKOUT)):
        pytest.skip(f"{CHECKOUT} names no checkout of the openresponses repository")
    copy = NODE / "open-responses"
    for name in ("bin", "src/lib", "src/generated"):
        shutil.copytree(Path(checkout) / name, copy / name, dirs_exist_ok=True)
    at = ("-u", f"{open_responses.url}/v1", "-k", open_responses.key, "-m", "gpt-oss-20b")
    program = (str(NODE / "node_modules/.bin/tsx"), "bin/compliance-test.ts", *at, "--json")
    ended = run(*program, folder=copy, bin=node_bin)
    results = {each["id"]: each["status"] for each in json.loads(ended.output)["results"]}
    assert len(results) >= 17
    assert {id for id, status in results.items() if status != "passed"} == {"image-input"}, (
        ended.output
    )


@pytest.mark.parametrize("format", ["openai-chat", "open-responses", "anthropic"])
def test_llm_comply(open_responses: Server, run: Fixture, format: str) -> None:
    at = ("-u", f"{open_responses.url}/v1", "-k", open_responses.key, "-m", "gpt-oss-20b")
    ended = run(str(SUITES / "bin/llm-comply"), "--format", format, *at, "--json")
    results = {each["name"]: each["status"] for each in json.loads(ended.output)["results"]}
    assert len(results) >= 9
    assert {name for name, status in results.items() if status == "failed"} == {"Image Input"}, (
        ended.output
    )


def test_llama_cpp(run: Fixture, tmp_path: Path) -> None:
    names = ("--served-model-name=test,gpt-4.1",)
    with serving(tmp_path, flags=names, has_keys=False) as server:
        port = server.url.rsplit(":", 1)[1]
        files = ("unit/test_compat_anthropic.py", "unit/test_compat_oai_responses.py")
        tests = (str(SUITES / "bin/python"), "-m", "pytest", "-q", "--tb=line", "-rfE", *files)
        ended = run("env", "DEBUG_EXTERNAL=1", f"PORT={port}", *tests, folder=LLAMA_TESTS)
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", ended.output, re.MULTILINE))
    assert failed == NOT_AS_LLAMA.keys(), ended.output
    assert re.search(r"\b29 passed", ended.output), ended.output


@contextlib.contextmanager
def gateway(server: Server, folder: Path) -> Iterator[str]:
    """vLLM's Agentic API in front of the server."""
    port = free_port()
    where = ("--gateway-host", "127.0.0.1", "--gateway-port", str(port))
    store = ("--db-url", f"sqlite://{folder}/agentic.db")
    command = [str(SUITES / "bin/agentic-server"), "--llm-api-base", server.url, *where, *store]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "OPENAI_API_KEY": server.key}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready = next((line for line in process.stdout if "gateway listening" in line), None)
            assert ready is not None, "the gateway ended before it was ready"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def test_agentic_api(server: Server, run: Fixture, tmp_path: Path) -> None:
    with gateway(server, tmp_path) as url:
        program = str(HERE / "python" / "use_agentic.py")
        ended = run(str(SUITES / "bin/python"), program, url, server.key)
    assert ended.status == 0, ended.log


@pytest.mark.parametrize(
    ("scenario", "revision"),
    [
        ("initialize", "2025-11-25"),
        ("tools_call", "2025-11-25"),
        ("sse-retry", "2025-11-25"),
        ("tools_call", "2026-07-28"),
        ("request-metadata", "2026-07-28"),
        ("http-standard-headers", "2026-07-28"),
    ],
)
def test_mcp_conformance(
    run: Fixture, node_bin: Path, scenario: str, revision: str, tmp_path: Path
) -> None:
    """The scenarios of a client that calls tools; we have no OAuth and no elicitation."""
    client = shlex.join((sys.executable, str(HERE / "suites" / "mcp_client.py")))
    suite = (str(NODE / "node_modules/.bin/conformance"), "client", "--timeout", "60000")
    which = ("--scenario", scenario, "--spec-version", revision)
    python = ("env", f"PYTHONPATH={ROOT}")
    ended = run(*python, *suite, "--command", client, *which, bin=node_bin, folder=tmp_path)
    assert "OVERALL: PASSED" in ended.log, ended.log
