"""An MCP server with the tools `browser` and `python`, as operators run one; run as a program.

Prints `{"mcp": port, "old": port, "sse": port}` once it listens: on streamable HTTP by every
revision of the protocol, by those before 2026 alone, and on the older transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import socket
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

server = MCPServer("tools", log_level="ERROR")
names: dict[str, dict[str, object]] = {}  # what each client's code has defined


@server.tool()
async def search(query: str, topn: int = 10, source: str | None = None) -> str:
    """Always finds one page."""
    return f"[0] {topn} results for «{query}»"


@server.tool(name="open")
async def open_page(id: int | str = -1, cursor: int = -1) -> str:
    """Opens nothing."""
    raise ToolError(f"no page {id} at cursor {cursor}")


@server.tool()
async def find(pattern: str, cursor: int = -1) -> str:
    """Finds nothing, slowly."""
    await asyncio.sleep(600)
    return pattern


@server.tool()
async def python(code: str, ctx: Context[Any, Any]) -> str:
    """Runs code; what it defines stays for the same client."""
    if code == "die":
        os._exit(1)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        meta: Any = ctx.request_context.meta
        try:
            exec(code, names.setdefault(str(meta["client_id"]), {}))
        except Exception as error:
            raise ToolError(str(error)) from error
    return output.getvalue()


class BeforeDiscovery:
    """What a server of an older revision answers to a version that it does not know."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-protocol-version", b"") < b"2026":
            return await self._app(scope, receive, send)
        error = {"code": -32600, "message": "Bad Request: Unsupported protocol version"}
        body = {"jsonrpc": "2.0", "id": "server-error", "error": error}
        return await JSONResponse(body, 400)(scope, receive, send)


async def main() -> None:
    apps: dict[str, ASGIApp] = {
        "mcp": server.streamable_http_app(),
        "sse": server.sse_app(),
    }
    apps["old"] = BeforeDiscovery(server.streamable_http_app(streamable_http_path="/old"))
    ports, serving = {}, []
    for name, app in apps.items():
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ports[name] = listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="critical")
        serving.append(uvicorn.Server(config).serve(sockets=[listener]))
    print(json.dumps(ports), flush=True)
    await asyncio.gather(*serving)


asyncio.run(main())
