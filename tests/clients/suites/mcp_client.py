"""Our MCP client under the conformance suite: `mcp_client.py URL` calls a scenario's tool."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Final

from parts.mcp.connection import Connection

CALLS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "initialize": ("none", {}),
    "tools_call": ("add_numbers", {"a": 5, "b": 3}),
    "sse-retry": ("test_reconnection", {}),
    "request-metadata": ("none", {}),
    "http-standard-headers": ("test_headers", {}),
}


async def main(url: str) -> None:
    tool, arguments = CALLS[os.environ["MCP_CONFORMANCE_SCENARIO"]]
    connection = Connection(url, {})
    try:
        async with asyncio.timeout(60):
            print(await connection.call(tool, arguments, "conformance"))
        print(connection.revision)
    except Exception as error:  # the suite has no such tool: it is about the messages before
        print(type(error).__name__, error)
        if tool != "none":
            raise
    finally:
        await connection.close()


asyncio.run(main(sys.argv[-1]))
