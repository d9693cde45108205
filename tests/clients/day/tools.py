"""The MCP servers of an agent's day; run as a program.

`stdio`: 40 tools of a harbour, with schemas as such servers have them, and results that a model
cannot read. `browser`: prints its port, then serves a web search on streamable HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server

from tests.clients.day.files import PDF, PNG

NUM_BERTHS = 36
PERIOD = {
    "type": "object",
    "properties": {
        "from": {"type": "string", "format": "date-time"},
        "hours": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5},
    },
    "dependentRequired": {"hours": ["from"]},
}
# What a berth's tool takes beside the name, one after the other.
EXTRAS: list[dict[str, Any]] = [
    {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    {"period": {"$ref": "#/$defs/period"}},
    {"code": {"type": "string", "pattern": "^(?=.*[A-Z])[A-Z0-9-]{2,12}$"}},
    {"depth": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}},
    {"limit": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}},
    {"filter": {"type": "object", "additionalProperties": {"type": ["string", "boolean"]}}},
    {"mode": {"enum": ["arrive", "leave", 1, None]}, "kind": {"const": "berth"}},
    {"not": {"not": {"type": "array"}}, "free text": {"title": "Free text"}},
    {},
]
CONTENTS: dict[str, list[types.ContentBlock]] = {
    "photo": [
        types.TextContent(text="The photo of the quay:"),
        types.ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png"),
    ],
    "chart": [
        types.EmbeddedResource(
            resource=types.BlobResourceContents(
                uri="file:///chart.pdf",
                mime_type="application/pdf",
                blob=base64.b64encode(PDF).decode(),
            )
        )
    ],
    "sound": [types.AudioContent(data="UklGRg==", mime_type="audio/wav")],
    "closed": [types.TextContent(text="The office is closed.")],
}


def tools() -> list[types.Tool]:
    berths = [_berth(number) for number in range(1, NUM_BERTHS + 1)]
    empty = {"type": "object", "properties": {}}
    others = [
        types.Tool(name=name, description=f"Gives the {name}.", input_schema=empty)
        for name in CONTENTS
    ]
    return [*berths, *others]


def _berth(number: int) -> types.Tool:
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"ship": {"type": "string"}, **EXTRAS[number % len(EXTRAS)]},
        "required": ["ship"],
        "$defs": {"period": PERIOD},
    }
    return types.Tool(
        name=f"berth_{number:02}",
        description=f"Asks berth {number} about a ship.",
        input_schema=schema,
    )


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=tools())


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    if (content := CONTENTS.get(params.name)) is not None:
        return types.CallToolResult(content=content, is_error=params.name == "closed")
    said = {"berth": params.name, "ship": (params.arguments or {}).get("ship")}
    text = json.dumps(said)
    return types.CallToolResult(
        content=[types.TextContent(text=text)], structured_content=said, is_error=False
    )


async def serve_agent() -> None:
    server = Server("harbour", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_browser() -> None:
    server = MCPServer("tools", log_level="ERROR")

    @server.tool()
    async def search(query: str, topn: int = 10, source: str | None = None) -> str:
        """Finds the tide table."""
        return f"【0†Tides for «{query}»†tides.example.org】 High water is at 14:20."

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve_browser() if sys.argv[1] == "browser" else serve_agent())
