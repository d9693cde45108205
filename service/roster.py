"""The tools of a conversation: some are offered from the beginning, others once a message names
them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    """A tool in whatever terms."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Roster(Generic[T]):
    """Follows a history: each call is one of its steps, and what is offered at the end counts.

    A name without a tool is no error: what a search found may be gone.
    """

    def __init__(self) -> None:
        self._known: dict[str, T] = {}
        self._offered: dict[str, T] = {}

    def defer(self, tool: T) -> None:
        """Know a tool that is not offered yet."""
        self._known[tool.name] = tool

    def offer(self, tool: T) -> None:
        """Offer a tool from here on, in the place of one of its name."""
        self._known[tool.name] = self._offered[tool.name] = tool

    def find(self, name: str) -> None:
        """Offer a known tool from here on."""
        if name in self._known:
            self._offered[name] = self._known[name]

    def remove(self, name: str) -> None:
        """Offer it no longer."""
        self._offered.pop(name, None)

    @property
    def offered(self) -> tuple[T, ...]:
        return tuple(self._offered.values())


def found_text(names: Iterable[str]) -> str:
    """What the model reads of the tools that a search found."""
    listed = ", ".join(names)
    return f"These tools can be called now: {listed}." if listed else ""
