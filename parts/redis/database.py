"""A Redis as a database, for several replicas of the service."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from parts.redis.cancelling import cancellable
from service.store.ages import AgeClock, ClockReading
from service.store.base import StoreError
from service.store.guard import FailureLog

R = TypeVar("R")

_TIMEOUT_S: Final = 2.0
_CLOCK: Final = "harmonium:{responses}:clock"


class RedisDatabase:
    """Implements service.store.base.ScriptDatabase."""

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._redis = Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            # A call whose answer was lost may have been done, and most may not be done twice.
            # What was restarted meanwhile is connected to again before a call.
            retry=Retry(NoBackoff(), 0),
        )
        self._ages = AgeClock(clock)
        self._failures = FailureLog()
        self._scripts: dict[str, AsyncScript] = {}

    async def lasts(self) -> bool:
        return True

    async def call(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """Run a script; Redis keeps it for the next time."""
        registered = self._scripts.get(script)
        if registered is None:
            registered = self._scripts[script] = self._redis.register_script(script)
        return await self._guarded(lambda: registered(keys, args))

    async def age(self) -> float:
        return await self._guarded(self._agreed_age) if self._ages.is_due else self._ages.now()

    async def close(self) -> None:
        await self._redis.aclose()

    async def _agreed_age(self) -> float:
        wall, age = await self._redis.hmget(_CLOCK, ["wall", "age"])
        kept = None if wall is None or age is None else ClockReading(float(wall), float(age))
        reading = self._ages.meet(kept)
        await self._redis.hset(_CLOCK, mapping={"wall": reading.wall, "age": reading.age})
        return reading.age

    async def _guarded(self, work: Callable[[], Awaitable[R]]) -> R:
        try:
            return await cancellable(work())
        except (RedisError, OSError) as error:
            self._failures.failed("The store of responses (Redis) failed: %s", error)
            raise StoreError(f"The store of responses (Redis) failed: {error}") from error
