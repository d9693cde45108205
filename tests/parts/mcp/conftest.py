"""Real MCP servers in processes of their own, and a service around a scripted engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engines.base import EngineRequest
from parts.mcp.runner import mcp_tools
from service.tools import MAX_CALLS, Toolbox
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions
from tests.service.conftest import chat_body, events, harmony_ids, make_client, make_runtime

__all__ = ["chat_body", "events", "harmony_ids", "make_client", "make_runtime"]

PROGRAM = Path(__file__).with_name("serve_tools.py")
PYTHON = "<|channel|>analysis to=python code<|message|>{}<|call|>"
SEARCH = '<|channel|>analysis to=browser.search code<|message|>{"query": "é"}<|call|>'
FINAL = "<|channel|>final<|message|>It is 4.<|return|>"

Service = Callable[..., Awaitable[httpx2.AsyncClient]]


def start_tools() -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    ports = json.loads(process.stdout.readline())
    return process, {name: f"http://127.0.0.1:{port}/{name}" for name, port in ports.items()}


@pytest.fixture(scope="session")
def tool_urls() -> Iterator[dict[str, str]]:
    """The URLs of one MCP server, by transport."""
    process, urls = start_tools()
    with process:
        yield urls
        process.kill()


@pytest.fixture
def mortal_tools() -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A server of the test's own, which may die."""
    process, urls = start_tools()
    with process:
        yield process, urls
        process.kill()


@pytest.fixture
def script() -> dict[str, str]:
    """What the scripted model writes."""
    return {"python": PYTHON, "search": SEARCH, "final": FINAL}


@pytest.fixture
def prompts() -> list[EngineRequest]:
    """What the engine was asked for, round by round."""
    return []


@pytest.fixture
def service(
    make_runtime: Callable[..., Any],
    make_client: Callable[..., Any],
    harmony_ids: Callable[[str], tuple[int, ...]],
    tool_urls: dict[str, str],
    prompts: list[EngineRequest],
) -> Service:
    """A client of a service whose model writes one text after the other."""

    async def start(
        *texts: str,
        urls: dict[str, str] | None = None,
        timeout_s: float = 60.0,
        max_calls: int = MAX_CALLS,
        **fake: Any,
    ) -> httpx2.AsyncClient:
        def write(request: EngineRequest) -> tuple[int, ...]:
            prompts.append(request)
            return harmony_ids(texts[(len(prompts) - 1) % len(texts)])

        if urls is None:
            urls = {"browser": tool_urls["mcp"], "python": tool_urls["mcp"]}
        engine = FakeEngine(FakeOptions(script=(1,), **fake), write)
        toolbox = Toolbox(mcp_tools(urls, timeout_s), max_calls)
        client: httpx2.AsyncClient = await make_client(
            replace(make_runtime(engine=engine), toolbox=toolbox)
        )
        return client

    return start
