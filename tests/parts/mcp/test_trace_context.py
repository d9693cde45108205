"""W3C trace context in and out: what callers send reaches the servers that tools run on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from starlette.datastructures import Headers

from parts.mcp.connection import Connection
from service.request import trace_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


class ToolServer(ThreadingHTTPServer):
    """Answers nothing of use and remembers the headers it was sent."""

    seen: list[dict[str, str]]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, ToolServer)
        self.server.seen.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def tool_server() -> Iterator[ToolServer]:
    with ToolServer(("127.0.0.1", 0), Handler) as server:
        server.seen = []
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def call(server: ToolServer, headers: dict[str, str]) -> dict[str, str]:
    """Call a tool inside a request with these headers; gives what the tool's server was sent."""
    trace = trace_of(Headers(headers))
    connection = Connection(f"http://127.0.0.1:{server.server_port}/mcp", trace.headers)
    try:
        with pytest.raises(Exception):  # noqa: B017, PT011  it answers nothing of use
            async with asyncio.timeout(60):
                await connection.call("tool", {}, "client")
    finally:
        await connection.close()
    return server.seen[0]


async def test_the_callers_trace_goes_on_to_tools(tool_server: ToolServer) -> None:
    sent = await call(tool_server, {"traceparent": PARENT, "tracestate": "vendor=1"})
    assert sent["traceparent"] == PARENT
    assert sent["tracestate"] == "vendor=1"


async def test_without_a_trace_nothing_is_made_up(tool_server: ToolServer) -> None:
    assert "traceparent" not in await call(tool_server, {"tracestate": "vendor=1"})
