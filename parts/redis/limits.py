"""Counts of callers in a Redis: per minute, and of running requests.

Each running request holds a lease, which its process renews and which ends by itself when the
process dies.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from limits.aio.storage import RedisStorage
from limits.aio.storage.redis.redispy import RedispyBridge
from limits.errors import StorageError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from parts.redis.cancelling import cancellable
from service.admission.remote import RemoteError, RemoteLimits

CONNECT_S: Final = 1.0
# Of one question, of which a request asks several before its first token. A Redis that takes longer
# counts as away: callers wait for it once in PAUSE_S and not each time.
TIMEOUT_S: Final = 0.3
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


def limits_in(url: str, lease_s: float = LEASE_S) -> RemoteLimits:
    """The counts in a Redis; it is not asked before the first one."""
    return RemoteLimits("Redis", RedisWindows(url), RedisPlaces(url, lease_s))


class RedisWindows:
    """Implements service.admission.remote.RemoteWindows."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        scheme = "redis+unix" if scheme == "unix" else scheme
        self._storage = RedisStorage(
            f"async+{scheme}://{rest}",
            wrap_exceptions=True,
            implementation="redispy",  # the same client library as that of stored responses
            key_prefix="harmonium:limits",
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=CONNECT_S,
        )

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        try:
            return await cancellable(
                self._storage.acquire_sliding_window_entry(key, limit, expiry, amount)
            )
        except StorageError as error:
            raise RemoteError(error.storage_error) from error

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        try:
            return await cancellable(self._storage.get_sliding_window(key, expiry))
        except StorageError as error:
            raise RemoteError(error.storage_error) from error

    async def close(self) -> None:
        bridge = self._storage.bridge
        assert isinstance(bridge, RedispyBridge)
        await bridge.storage.aclose()


class RedisPlaces:
    """Implements service.admission.remote.RemotePlaces."""

    def __init__(self, url: str, lease_s: float) -> None:
        self._redis = Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=CONNECT_S
        )
        self._lease_s = lease_s
        self._lease_ms = str(round(1000 * lease_s))
        self._leases: dict[str, str] = {}  # caller by lease
        self._renewing: asyncio.Task[None] | None = None

    async def take(self, who: str, at_once: int, lease: str) -> bool:
        if not await self._eval(_TAKE, who, str(at_once), self._lease_ms, lease):
            return False
        self._leases[lease] = who
        self._renewing = self._renewing or asyncio.create_task(self._renew(), name="leases")
        return True

    async def give_back(self, lease: str, *, is_away: bool) -> None:
        who = self._leases.pop(lease, None)
        if who is None or is_away:
            return
        try:
            await cancellable(self._redis.zrem(_PREFIX + who, lease))
        except RedisError as error:
            raise RemoteError(error) from error

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        await self._redis.aclose()

    async def _eval(self, script: str, who: str, *arguments: str) -> Any:
        try:
            return await cancellable(self._redis.eval(script, 1, _PREFIX + who, *arguments))
        except RedisError as error:
            raise RemoteError(error) from error

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            for lease, who in list(self._leases.items()):
                try:
                    await self._eval(_RENEW, who, self._lease_ms, lease)
                except RemoteError:
                    break  # it is away: the next request says so
