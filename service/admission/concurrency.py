"""How many requests of one caller run at a time: in this server, or of all servers.

When what counts for all fails, this server counts for itself until it is back.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.admission.counts import Counts, OwnCounts
from service.admission.remote import RemoteError, RemoteLimits


class ConcurrencyLimit:
    """Counts the running requests of each caller."""

    def __init__(self, counts: Counts | None = None, remote: RemoteLimits | None = None) -> None:
        """`counts`: of all API workers of this server; `remote`: of all servers."""
        self._counts = counts or OwnCounts()
        self._remote = remote.places if remote else None
        self._guard = remote.guard() if remote else None

    @asynccontextmanager
    async def hold(self, who: str, at_once: int) -> AsyncIterator[bool]:
        """Hold one of the caller's places inside the block, unless the block is given False."""
        lease = secrets.token_hex(8)
        if not await self._take(who, at_once, lease):
            yield False
            return
        try:
            yield True
        finally:
            self._counts.leave(_key(who))
            await self._give_back(lease)

    async def close(self) -> None:
        if self._remote is not None:
            await self._remote.close()

    async def _take(self, who: str, at_once: int, lease: str) -> bool:
        if self._remote is None or self._guard is None or self._guard.is_closed:
            return self._counts.enter(_key(who), at_once)
        try:
            is_taken = await self._remote.take(who, at_once, lease)
        except RemoteError as error:
            self._guard.close(error.cause)
            return self._counts.enter(_key(who), at_once)
        if is_taken:
            self._counts.enter(_key(who), sys.maxsize)
        return is_taken

    async def _give_back(self, lease: str) -> None:
        if self._remote is None or self._guard is None:
            return
        try:
            await self._remote.give_back(lease, is_away=self._guard.is_closed)
        except RemoteError as error:
            self._guard.close(error.cause)


def _key(who: str) -> str:
    return f"running:{who}"
