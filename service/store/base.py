"""What holds what outlives a request: a database, on which each feature has tables of its own.

There are two kinds: a SQLite file (service/store/sqlite.py), for the processes of one host, and one
that runs scripts (Redis), for several hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class StoreError(Exception):
    """The store cannot be reached or written; the message names it."""


class AnyDatabase(Protocol):
    """What both kinds have."""

    async def lasts(self) -> bool:
        """Whether what is put now would be kept, and outlive this process."""

    async def close(self) -> None:
        """Release everything; may be called twice."""


class ScriptDatabase(AnyDatabase, Protocol):
    """A database with Redis's commands, which runs scripts in Lua.

    The keys of one script share a hash tag, so that a cluster keeps them together.
    """

    async def call(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script; raises StoreError."""

    async def age(self) -> float:
        """The time by which ages are counted (service/store/ages.py); raises StoreError."""
