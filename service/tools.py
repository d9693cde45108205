"""Built-in tools: what an answer needs of those that run them. A part connects them."""

from __future__ import annotations

from collections.abc import Mapping
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
