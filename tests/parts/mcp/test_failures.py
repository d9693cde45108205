"""What goes wrong with a tool is its answer: the model reads it, and no request fails by it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import socket
import subprocess
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from engines.base import EngineRequest
from parts.mcp.connection import Connection
from parts.mcp.runner import mcp_tools
from service.harmony.vocabulary import decode_marked
from service.tools import MAX_RESULT_BYTES, Toolbox, ToolResult
from tests.needs import needs

Fixture = Callable[..., Any]

PATH = "/v1/responses"
BODY = {
    "model": "gpt-oss-20b",
    "input": "Hi",
    "tools": [{"type": "web_search"}, {"type": "code_interpreter", "container": "c"}],
}
AGAIN = "The next call of python starts from nothing."
FIND = '<|channel|>analysis to=browser.find code<|message|>{"pattern": "a"}<|call|>'


async def call(url: str, recipient: str, text: str, timeout_s: float = 60.0) -> ToolResult:
    toolbox = Toolbox(mcp_tools({"browser": url, "python": url}, timeout_s))
    async with toolbox.session({}) as session:
        return await session.call(recipient, text)


@pytest.mark.parametrize("transport", ["mcp", "old", "sse"])
async def test_every_transport_and_revision_answers(
    tool_urls: dict[str, str], transport: str
) -> None:
    url = tool_urls[transport]
    assert await call(url, "python", "print('é')") == ToolResult("é\n")
    assert (await call(url, "python", "")).text == ""
    found = await call(url, "browser.search", '{"query": "q", "topn": 3}')
    assert found == ToolResult("[0] 3 results for «q»")


@pytest.mark.parametrize(
    ("transport", "revision"), [("mcp", "2026-07-28"), ("old", "2025-11-25"), ("sse", "2025-11-25")]
)
async def test_the_newest_revision_is_spoken_that_a_server_knows(
    tool_urls: dict[str, str], transport: str, revision: str
) -> None:
    connection = Connection(tool_urls[transport], {})
    try:
        await connection.call("python", {"code": "1"}, "client")
        assert connection.revision == revision
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("recipient", "text", "said"),
    [
        ("browser.search", "not JSON", "not JSON"),
        ("browser.search", "[1]", "not a JSON object"),
        ("browser.search", '{"query": ' * 5000, "not JSON"),
        ("browser.search", "{}", "Field required"),
        ("browser.open", '{"id": 3}', "no page 3 at cursor -1"),
        ("python", "1 / 0", "division by zero"),
    ],
)
async def test_wrong_calls_are_answered(
    tool_urls: dict[str, str], recipient: str, text: str, said: str
) -> None:
    result = await call(tool_urls["mcp"], recipient, text)
    assert result.is_error
    assert result.text.startswith("Error")
    assert said in result.text


async def test_a_long_result_is_cut(tool_urls: dict[str, str]) -> None:
    result = await call(tool_urls["mcp"], "python", "print('.' + 'é' * 40_000)")
    kept = "." + "é" * (MAX_RESULT_BYTES // 2 - 1)
    assert result.text == kept + "\n[cut: 80002 bytes in all]"


@pytest.mark.parametrize("path", ["mcp", "sse"])
async def test_a_server_that_is_down_is_said_to_be(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    result = await call(f"http://127.0.0.1:{port}/{path}", "python", "print(1)")
    assert result == ToolResult(f"Error: python is not reachable. {AGAIN}", is_error=True)


async def test_a_url_without_a_tool_server_is_said_to_be_one(tool_urls: dict[str, str]) -> None:
    result = await call(f"{tool_urls['mcp']}/nothing", "python", "print(1)")
    assert result.text == f"Error: python is not reachable. {AGAIN}"


@contextlib.asynccontextmanager
async def answering(headers: str, body: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that gives every request this answer, with the request's id in place of 0; its URL,
    and the requests' heads."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            size = re.search(rb"content-length: (\d+)", heads[-1].lower())
            asked = json.loads(await reader.readexactly(int(size[1]) if size else 0) or "{}")
            said = body.replace(b'"id":0', b'"id":%d' % asked.get("id", 0), 1)
            head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
            size_line = f"Content-Length: {len(said)}\r\n\r\n"
            writer.write(f"{head}{headers}{size_line}".encode() + said)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", heads


async def test_a_compressed_answer_is_not_unfolded(caplog: pytest.LogCaptureFixture) -> None:
    bomb = gzip.compress(b" " * 30_000_000)
    async with answering("Content-Encoding: gzip\r\n", bomb) as (url, heads):
        tracemalloc.start()
        try:
            result = await call(url, "python", "1")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert result.text == f"Error: python is not reachable. {AGAIN}"
    assert "the answer is compressed ('gzip')" in caplog.text
    assert b"accept-encoding: identity\r\n" in heads[0].lower()
    assert most < 10_000_000


@pytest.mark.parametrize("block", [b'{"type":"text","text":""}', b'"x"', b'{"t\\u0079pe":[[]]}'])
async def test_an_answer_of_too_many_parts_is_not_read(
    block: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = b",".join([block] * 300_000)
    async with answering("", b'{"jsonrpc":"2.0","id":0,"result":{"content":[%b]}}' % blocks) as (
        url,
        _,
    ):
        result = await call(url, "python", "1")
    assert result.text == f"Error: python is not reachable. {AGAIN}"
    assert "above the limit" in caplog.text


async def test_a_servers_error_makes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    words = r"no\nINFO 2026-01-01 auth.granted caller=root\u001b[2K"
    error = f'{{"jsonrpc":"2.0","id":0,"error":{{"code":-32000,"message":"{words}"}}}}'
    async with answering("", error.encode()) as (url, _):
        result = await call(url, "python", "1")
    assert result.is_error
    [message] = [r.getMessage() for r in caplog.records if r.name == "parts.mcp.runner"]
    assert "auth.granted" in message
    assert message.isprintable()


@needs("responses")
async def test_a_slow_tool_is_left(
    service: Fixture, script: dict[str, str], prompts: list[EngineRequest]
) -> None:
    client = await service(FIND, script["final"], timeout_s=0.5)
    answer = (await client.post(PATH, json=BODY)).json()
    assert [item["status"] for item in answer["output"]] == ["failed", "completed"]
    told = decode_marked(prompts[1].prompt_token_ids)
    assert "Error: browser did not answer within 0.5 seconds." in told


async def test_a_server_that_never_speaks_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        result = await call(url, "python", "1", timeout_s=0.3)
    assert result.text == f"Error: python did not answer within 0.3 seconds. {AGAIN}"


@needs("responses")
@pytest.mark.parametrize("transport", ["mcp", "sse"])
async def test_a_server_that_dies_fails_the_call_and_not_the_answer(
    service: Fixture,
    script: dict[str, str],
    mortal_tools: tuple[subprocess.Popen[str], dict[str, str]],
    transport: str,
) -> None:
    _, urls = mortal_tools
    texts = script["python"].format("die"), script["python"].format("print(1)"), script["final"]
    client = await service(*texts, urls={"python": urls[transport]}, timeout_s=3600)
    answer = await client.post(PATH, json=BODY)
    assert answer.status_code == 200
    output = answer.json()["output"]
    assert [item["status"] for item in output] == ["failed", "failed", "completed"]
    assert output[1]["outputs"][0]["logs"] == f"Error: python is not reachable. {AGAIN}"


@needs("responses")
async def test_a_client_that_leaves_ends_the_call(
    service: Fixture, script: dict[str, str], prompts: list[EngineRequest]
) -> None:
    client = await service(FIND, script["final"])
    asking = asyncio.create_task(client.post(PATH, json=BODY))
    async with asyncio.timeout(60):
        while not any(task.get_name() == "mcp connection" for task in asyncio.all_tasks()):
            await asyncio.sleep(0.005)
        asking.cancel()
        while any(task.get_name() == "mcp connection" for task in asyncio.all_tasks()):
            await asyncio.sleep(0.005)
    assert len(prompts) == 1


@needs("responses")
async def test_a_result_that_does_not_fit_the_context_is_cut(
    service: Fixture, script: dict[str, str], prompts: list[EngineRequest]
) -> None:
    code = script["python"].format("print('a b ' * 5000)")
    client = await service(code, script["final"], max_model_len=1000)
    answer = (await client.post(PATH, json=BODY)).json()
    assert answer["status"] == "completed"
    assert 800 < len(prompts[1].prompt_token_ids) <= 875
    assert prompts[1].sampling.max_tokens == 1000 - len(prompts[1].prompt_token_ids)
    full = await service(code, script["final"], max_model_len=640)
    answer = (await full.post(PATH, json=BODY)).json()
    assert answer["status"] == "incomplete"


@needs("responses")
async def test_the_deadline_of_the_request_ends_a_call(
    service: Fixture, script: dict[str, str]
) -> None:
    client = await service(FIND, script["final"])
    answer = await client.post(PATH, json=BODY, headers={"X-Request-Timeout-Ms": "700"})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
