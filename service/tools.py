"""Built-in tools: what an answer needs of those that run them. A part connects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The text that the model is given for a call, and whether the call failed."""

    text: str
    is_error: bool = False


class ToolSession(Protocol):
    """The tools of one answer, inside its block."""

    async def __aenter__(self) -> ToolSession: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def call(self, recipient: str, text: str) -> ToolResult:
        """Run what the model wrote to `python` or `browser.search`; never raises."""
        ...


class Toolbox(Protocol):
    """The connected built-in tools."""

    @property
    def tools(self) -> frozenset[str]: ...

    @property
    def max_calls(self) -> int:
        """How many one answer may make."""
        ...

    def session(self, headers: Mapping[str, str]) -> ToolSession:
        """A session for one answer: what it opens and computes is not seen by another.

        `headers`: of all its requests, such as the trace that the answer is part of.
        """
        ...


class Toolboxes:
    """Several as one; a tool that two have is the first one's."""

    def __init__(self, toolboxes: Sequence[Toolbox]) -> None:
        self._toolboxes = toolboxes

    @property
    def tools(self) -> frozenset[str]:
        return frozenset[str]().union(*(each.tools for each in self._toolboxes))

    @property
    def max_calls(self) -> int:
        return max(each.max_calls for each in self._toolboxes)

    def session(self, headers: Mapping[str, str]) -> ToolSessions:
        return ToolSessions([(each.tools, each.session(headers)) for each in self._toolboxes])


class ToolSessions:
    """The sessions of one answer, by the tools that each has."""

    def __init__(self, sessions: Sequence[tuple[frozenset[str], ToolSession]]) -> None:
        self._sessions = sessions
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> ToolSessions:
        for _, session in self._sessions:
            await self._stack.enter_async_context(session)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def call(self, recipient: str, text: str) -> ToolResult:
        tool = recipient.partition(".")[0]
        session = next(session for tools, session in self._sessions if tool in tools)
        return await session.call(recipient, text)
