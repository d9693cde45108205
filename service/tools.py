"""Built-in tools: what runs them for an answer. Parts connect them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol

MAX_CALLS: Final = 16  # of an answer
MAX_RESULT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The text that the model is given for a call, and whether the call failed."""

    text: str
    is_error: bool = False


class ToolLost(Exception):
    """What runs a tool has ended or is ended; the text tells the model why."""


class ToolRunner(Protocol):
    """One tool of one answer: it keeps what its calls made until it is closed."""

    async def call(self, action: str, text: str) -> ToolResult:
        """Run a call: `action` is `search` of `browser.search`, or the tool's own name.

        Raises ToolLost.
        """

    async def close(self) -> None: ...


# Makes a tool's runner for an answer; nothing starts before its first call. It is given the
# headers of requests on behalf of the answer, such as its trace, and an id of the answer.
Start = Callable[[Mapping[str, str], str], ToolRunner]


@dataclass(frozen=True, slots=True)
class ConnectedTool:
    """How a tool is run, and how long one call of it may take."""

    start: Start
    timeout_s: float


class Toolbox:
    """The built-in tools that are connected, by name."""

    def __init__(self, tools: Mapping[str, ConnectedTool], max_calls: int = MAX_CALLS) -> None:
        self.by_name = dict(tools)
        self.max_calls = max_calls  # of an answer

    @property
    def tools(self) -> frozenset[str]:
        return frozenset(self.by_name)

    def session(self, headers: Mapping[str, str]) -> ToolSession:
        """A session for one answer: what it opens and computes is not seen by another."""
        return ToolSession(self.by_name, headers)


def with_tools(toolbox: Toolbox | None, tools: Mapping[str, ConnectedTool]) -> Toolbox:
    """A toolbox with these tools, and with those of another that they do not replace."""
    return Toolbox({**toolbox.by_name, **tools} if toolbox else tools)


class ToolSession:
    """The tools of one answer, inside its block.

    A call never fails a request: what went wrong is the tool's answer, which the model reads.
    """

    def __init__(self, tools: Mapping[str, ConnectedTool], headers: Mapping[str, str]) -> None:
        self._tools = tools
        self._headers = headers
        self._id = uuid.uuid4().hex
        self._open: dict[str, ToolRunner] = {}

    async def __aenter__(self) -> ToolSession:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async with AsyncExitStack() as stack:  # one that fails keeps no other open
            for runner in self._open.values():
                stack.push_async_callback(runner.close)

    async def call(self, recipient: str, text: str) -> ToolResult:
        """Run what the model wrote to `python` or `browser.search`; never raises."""
        name, _, action = recipient.partition(".")
        tool = self._tools[name]
        if name not in self._open:
            self._open[name] = tool.start(self._headers, self._id)
        try:
            async with asyncio.timeout(tool.timeout_s):
                return _cut(await self._open[name].call(action or name, text))
        except TimeoutError:
            reason = f"{name} did not answer within {tool.timeout_s:g} seconds"
        except ToolLost as error:
            reason = str(error)
        # One without an answer may still be at work: the next call gets another.
        await self._open.pop(name).close()
        return ToolResult(
            f"Error: {reason}. The next call of {name} starts from nothing.", is_error=True
        )


def _cut(result: ToolResult) -> ToolResult:
    raw = result.text.encode("utf-8", "replace")
    if len(raw) <= MAX_RESULT_BYTES:
        return result
    kept = raw[:MAX_RESULT_BYTES].decode("utf-8", "ignore")
    return ToolResult(f"{kept}\n[cut: {len(raw)} bytes in all]", result.is_error)
