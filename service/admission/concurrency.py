"""How many requests of one caller run at a time: in this server, or in a Redis for all replicas.

In Redis each running request holds a lease, which its process renews and which ends by itself
when the process dies. When Redis fails, this server counts for itself until it is back.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from service.admission.counters import TIMEOUT_S, redis_guard
from service.admission.counts import Counts, OwnCounts

if TYPE_CHECKING:  # the library takes a tenth of a second to load, and few servers have a Redis
    from redis.asyncio import Redis

LEASE_S: Final = 30.0
_PREFIX: Final = "harmonium:limits:running:"

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# limit, lease in ms, id
_TAKE: Final = (
    _NOW
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return 1
"""
)
# lease in ms, id
_RENEW: Final = (
    _NOW
    + """
redis.call('ZADD', KEYS[1], 'XX', now + ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1] * 2)
"""
)


class ConcurrencyLimit:
    """Counts the running requests of each caller."""

    def __init__(
        self, redis_url: str | None = None, lease_s: float = LEASE_S, counts: Counts | None = None
    ) -> None:
        """`counts`: of all API workers of this server."""
        self._counts = counts or OwnCounts()
        self._redis = _redis(redis_url) if redis_url else None
        self._guard = redis_guard()
        self._lease_s = lease_s
        self._lease_ms = str(round(1000 * lease_s))
        self._leases: dict[str, str] = {}  # caller by lease id
        self._renewing: asyncio.Task[None] | None = None

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
        """Stop renewing leases; the remaining ones expire."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._redis is not None:
            await self._redis.aclose()

    async def _take(self, who: str, at_once: int, lease: str) -> bool:
        if self._redis is None or self._guard.is_closed:
            return self._counts.enter(_key(who), at_once)
        try:
            is_taken = await self._redis.eval(
                _TAKE, 1, _PREFIX + who, str(at_once), self._lease_ms, lease
            )
        except _redis_error() as error:
            self._guard.close(error)
            return self._counts.enter(_key(who), at_once)
        if is_taken:
            self._counts.enter(_key(who), sys.maxsize)
            self._leases[lease] = who
            self._renewing = self._renewing or asyncio.create_task(self._renew(), name="leases")
        return bool(is_taken)

    async def _give_back(self, lease: str) -> None:
        who = self._leases.pop(lease, None)
        if who is None or self._redis is None or self._guard.is_closed:
            return
        try:
            await self._redis.zrem(_PREFIX + who, lease)
        except _redis_error() as error:
            self._guard.close(error)

    async def _renew(self) -> None:
        assert self._redis is not None
        while True:
            await asyncio.sleep(self._lease_s / 3)
            for lease, who in list(self._leases.items()):
                if self._guard.is_closed:
                    break
                try:
                    await self._redis.eval(_RENEW, 1, _PREFIX + who, self._lease_ms, lease)
                except _redis_error() as error:
                    self._guard.close(error)


def _key(who: str) -> str:
    return f"running:{who}"


def _redis(url: str) -> Redis:
    from redis.asyncio import Redis

    return Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)


def _redis_error() -> type[Exception]:
    from redis.exceptions import RedisError

    return RedisError
