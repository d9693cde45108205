"""Counts per minute: in this server, or for all servers.

A sliding window of two fixed ones (the library `limits`). When what counts for all fails, this
server counts for itself until it is back: limits get looser then, and no caller is locked out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage

from service.admission.remote import RemoteError, RemoteLimits, Windows

WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a caller is from one limit."""

    limit: int
    remaining: int
    reset_s: float  # until nothing counts any more
    retry_s: float | None = None  # until the refused cost would be taken; None: it was


class MinuteCounters:
    """Counts what callers use in a minute, against their limits."""

    def __init__(self, shared: Windows | None = None, remote: RemoteLimits | None = None) -> None:
        """`shared`: of all API workers of this server; `remote`: of all servers."""
        self._memory: Windows = shared or MemoryStorage()
        self._remote = remote.windows if remote else None
        self._guard = remote.guard() if remote else None

    async def take(self, name: str, who: str, per_min: int, cost: int) -> Standing:
        """Count the cost if the limit leaves room for it; `cost` is at most the limit."""
        if self._remote is not None and self._guard is not None and not self._guard.is_closed:
            try:
                return await _take(self._remote, name, who, per_min, cost)
            except RemoteError as error:
                self._guard.close(error.cause)
        return await _take(self._memory, name, who, per_min, cost)

    async def close(self) -> None:
        if self._remote is not None:
            await self._remote.close()


async def _take(storage: Windows, name: str, who: str, per_min: int, cost: int) -> Standing:
    key = RateLimitItemPerMinute(per_min).key_for(name, who)
    is_taken = await storage.acquire_sliding_window_entry(key, per_min, WINDOW_S, cost)
    window = _Window(*await storage.get_sliding_window(key, WINDOW_S))
    return Standing(
        per_min,
        max(0, per_min - floor(window.weight)),
        window.until_free_s(0),
        None if is_taken else window.until_free_s(per_min - cost),
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """The counts of the last and of the running minute, and when they cease to count."""

    last: int
    last_ttl_s: float
    running: int
    running_ttl_s: float

    @property
    def weight(self) -> float:
        """The count of now: the last minute's part fades as the current one passes."""
        return self.last * self.last_ttl_s / WINDOW_S + self.running

    def until_free_s(self, weight: float) -> float:
        """Seconds until no more than this weight counts, if nothing is added."""
        if self.weight <= weight:
            return 0.0
        if self.running <= weight:
            return self.last_ttl_s - (weight - self.running) * WINDOW_S / self.last
        left_s = self.running_ttl_s - WINDOW_S
        return left_s + WINDOW_S * (1 - weight / self.running)
