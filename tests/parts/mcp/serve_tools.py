"""An MCP server with the tools `browser` and `python`, as operators run one; run as a program.

Prints `{"mcp": port, "sse": port}` once it listens on both transports.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import socket

import uvicorn
from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("tools", log_level="ERROR")
names: dict[str, dict[str, object]] = {}  # what each client's code has defined


@server.tool()
async def search(query: str, topn: int = 10, source: str | None = None) -> str:
    """Always finds one page."""
    return f"[0] {topn} results for «{query}»"


@server.tool(name="open")
async def open_page(id: int | str = -1, cursor: int = -1) -> str:
    """Opens nothing."""
    raise ValueError(f"no page {id} at cursor {cursor}")


@server.tool()
async def find(pattern: str, cursor: int = -1) -> str:
    """Finds nothing, slowly."""
    await asyncio.sleep(600)
    return pattern


@server.tool()
async def python(code: str, ctx: Context) -> str:  # type: ignore[type-arg]
    """Runs code; what it defines stays for the same client."""
    if code == "die":
        os._exit(1)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, names.setdefault(str(ctx.client_id), {}))
    return output.getvalue()


async def main() -> None:
    apps = {"mcp": server.streamable_http_app(), "sse": server.sse_app()}
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
