"""Counts per minute: in this server, or in a Redis for all replicas.

A sliding window of two fixed ones (the library `limits`). When Redis fails, this server
counts for itself until it is back: limits get looser then, and no caller is locked out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Final, Protocol

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.storage.redis.redispy import RedispyBridge
from limits.errors import StorageError

from service.store.guard import OutageGuard

WINDOW_S: Final = 60
TIMEOUT_S: Final = 1.0  # of one question to Redis


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a caller is from one limit."""

    limit: int
    remaining: int
    reset_s: float  # until nothing counts any more
    retry_s: float | None = None  # until the refused cost would be taken; None: it was


class Windows(Protocol):
    """Counts in the running and the last window of a key, as storages of `limits` have them."""

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        """Count the amount if the window has room for it."""
        ...

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """The counts of the last and the running window, each with the seconds it still counts."""
        ...


class MinuteCounters:
    """Counts what callers use in a minute, against their limits."""

    def __init__(self, redis_url: str | None = None, shared: Windows | None = None) -> None:
        """`shared`: of all API workers of this server."""
        self._memory: Windows = shared or MemoryStorage()
        self._redis = _redis(redis_url) if redis_url else None
        self._guard = redis_guard()

    async def take(self, name: str, who: str, per_min: int, cost: int) -> Standing:
        """Count the cost if the limit leaves room for it; `cost` is at most the limit."""
        if self._redis is not None and not self._guard.is_closed:
            try:
                return await _take(self._redis, name, who, per_min, cost)
            except StorageError as error:
                self._guard.close(error.storage_error)
        return await _take(self._memory, name, who, per_min, cost)

    async def close(self) -> None:
        if self._redis is not None:
            bridge = self._redis.bridge
            assert isinstance(bridge, RedispyBridge)
            await bridge.storage.aclose()


def _redis(url: str) -> RedisStorage:
    """Use the same Redis client library as stored responses."""
    scheme, _, rest = url.partition("://")
    scheme = "redis+unix" if scheme == "unix" else scheme
    return RedisStorage(
        f"async+{scheme}://{rest}",
        wrap_exceptions=True,
        implementation="redispy",
        key_prefix="harmonium:limits",
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
    )


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


def redis_guard() -> OutageGuard:
    """The guard that leaves a failed Redis alone for a while."""
    return OutageGuard("Redis", "until it is back, limits are counted per server")
