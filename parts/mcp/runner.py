"""A built-in tool that an MCP server of the operator's runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from parts.mcp.connection import Connection
from service.tools import ConnectedTool, ToolLost, ToolResult

if TYPE_CHECKING:
    from mcp.types import CallToolResult

_MAX_REPORTED: Final = 1000  # characters of an error, in the log

log = logging.getLogger(__name__)


def mcp_tools(urls: Mapping[str, str], timeout_s: float) -> dict[str, ConnectedTool]:
    """The tools that MCP servers run; `urls` has the server of each."""
    return {
        name: ConnectedTool(partial(McpRunner, name, url), timeout_s) for name, url in urls.items()
    }


class McpRunner:
    """Implements service.tools.ToolRunner."""

    def __init__(self, tool: str, url: str, headers: Mapping[str, str], answer: str) -> None:
        self._tool = tool
        self._answer = answer
        self._connection = Connection(url, headers)

    async def call(self, action: str, text: str) -> ToolResult:
        try:
            arguments = _arguments(self._tool, text)
        except ValueError as error:
            return ToolResult(f"Error: {error}", is_error=True)
        try:
            return _told(await self._connection.call(action, arguments, self._answer))
        except Exception as error:
            # The log alone has the words of the error: addresses and keys may be in them.
            # The server's words: they make no lines of ours.
            told = ascii(str(error)[:_MAX_REPORTED])
            log.warning("The MCP server of %s: %s: %s", self._tool, type(error).__name__, told)
            raise ToolLost(f"{self._tool} is not reachable") from None

    async def close(self) -> None:
        await self._connection.close()


def _told(result: CallToolResult) -> ToolResult:
    text = "\n".join(_text_of(block) for block in result.content)
    # MCP tells a failure beside the text, and the model reads the text alone.
    if result.is_error and not text.startswith("Error"):
        text = f"Error: {text}"
    return ToolResult(text, result.is_error)


def _arguments(tool: str, text: str) -> dict[str, Any]:
    """The tool's arguments; raises ValueError with what the model should know."""
    if tool == "python":
        return {"code": text}
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise ValueError("the arguments are not JSON") from None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return arguments


def _text_of(block: Any) -> str:
    """The text of a content block; the model reads nothing else."""
    if block.type == "text":
        return str(block.text)
    text = getattr(getattr(block, "resource", None), "text", None)
    return text if isinstance(text, str) else f"[{block.type} left out]"
