"""The built-in tools `browser` and `python`, run by the MCP servers that the operator connected.

A call never fails a request: what went wrong is the tool's answer, which the model reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from service.tools import ToolResult

if TYPE_CHECKING:
    from mcp.types import CallToolResult

    from parts.mcp.connection import Connection

_MAX_REPORTED = 1000  # characters of an error, in the log

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """What one call may take, and how many one answer may make."""

    timeout_s: float = 60.0
    max_result_bytes: int = 64 * 1024
    max_calls: int = 16


class McpToolbox:
    """Implements service.tools.Toolbox; `urls` has the MCP server of each tool."""

    def __init__(self, urls: Mapping[str, str], limits: ToolLimits) -> None:
        self._urls = dict(urls)
        self.limits = limits

    @property
    def tools(self) -> frozenset[str]:
        return frozenset(self._urls)

    @property
    def max_calls(self) -> int:
        return self.limits.max_calls

    def session(self, headers: Mapping[str, str]) -> McpSession:
        return McpSession(self._urls, self.limits, headers)


class McpSession:
    """Implements service.tools.ToolSession: opened by the first call, closed with the block."""

    def __init__(
        self, urls: Mapping[str, str], limits: ToolLimits, headers: Mapping[str, str]
    ) -> None:
        self._urls = urls
        self._headers = headers
        self._limits = limits
        self._client_id = uuid.uuid4().hex
        self._open: dict[str, Connection] = {}

    async def __aenter__(self) -> McpSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._open.values():
            await connection.close()

    async def call(self, recipient: str, text: str) -> ToolResult:
        tool, _, action = recipient.partition(".")
        try:
            arguments = _arguments(tool, text)
        except ValueError as error:
            return ToolResult(f"Error: {error}", is_error=True)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                result = await self._connection(tool).call(
                    action or tool, arguments, self._client_id
                )
        except TimeoutError:
            reason = f"{tool} did not answer within {self._limits.timeout_s:g} seconds"
        except Exception as error:
            # The log alone has the words of the error: addresses and keys may be in them.
            # The server's words: they make no lines of ours.
            told = ascii(str(error)[:_MAX_REPORTED])
            log.warning("The MCP server of %s: %s: %s", tool, type(error).__name__, told)
            reason = f"{tool} is not reachable"
        else:
            return self._told(result)
        # A server without an answer may still be at work: the next call gets another session.
        await self._open.pop(tool).close()
        return ToolResult(f"Error: {reason}.", is_error=True)

    def _connection(self, tool: str) -> Connection:
        from parts.mcp.connection import Connection

        if tool not in self._open:
            self._open[tool] = Connection(self._urls[tool], self._headers)
        return self._open[tool]

    def _told(self, result: CallToolResult) -> ToolResult:
        text = "\n".join(_text_of(block) for block in result.content)
        raw = text.encode("utf-8", "replace")
        if len(raw) > self._limits.max_result_bytes:
            kept = raw[: self._limits.max_result_bytes].decode("utf-8", "ignore")
            text = f"{kept}\n[cut: {len(raw)} bytes in all]"
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
