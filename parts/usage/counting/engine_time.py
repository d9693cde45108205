"""Whose the seconds of an engine are, as its clients read them.

The engine knows accounts by names that its clients made up (EngineRequest.extras). It tells each
one's seconds so far with its counts, under a name that no other life of an engine uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engines.base import EngineStats

PART: Final = "usage"  # its key in EngineSpec.parts and EngineRequest.extras
NOBODY: Final = ""  # asks on its own account: a probe, a comparison
MOST: Final = 4096  # accounts that an engine keeps, the last used
_PREFIX: Final = "usage_s"


def name_of(life: str, account: str) -> str:
    """What the seconds of an account are called in EngineStats.levels."""
    return f"{_PREFIX}/{life}/{account}"


class EngineSeconds:
    """What the engines of a server have told of the accounts of one client."""

    def __init__(self, client: str) -> None:
        """`client`: a name that no other has, without a slash."""
        self._client = client
        self._told: dict[str, float] = {}

    def account(self, name: str) -> str:
        """What a request of the client names for the engine."""
        return f"{self._client}/{name}"

    def new(self, stats: EngineStats) -> Iterator[tuple[str, str, int]]:
        """The names that have used whole milliseconds since they were last told, each with its
        adapter, if any, and how many.

        Stats have to come in the order in which the engine told them.
        """
        for key, seconds in stats.levels.items():
            prefix, _, rest = key.partition("/")
            client, _, name = rest.partition("/")[2].partition("/")
            if prefix != _PREFIX or client != self._client:
                continue
            told = self._told.get(key, 0.0)
            if seconds < told:  # the engine forgot the account, and it is back
                told = 0.0
            num_ms = int((seconds - told) * 1000)
            self._told[key] = told + num_ms / 1000
            if num_ms:
                name, _, adapter = name.partition("\n")  # as parts/usage/engine.py names them
                yield name, adapter, num_ms
        if len(self._told) > 2 * MOST:  # those of engines that are gone
            self._told = {key: s for key, s in self._told.items() if key in stats.levels}
