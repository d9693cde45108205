"""Responses in Redis, for several replicas of the service.

One hash and one list a response, an index by last use for all and for each owner, and counts of
all bytes and of each owner's. The keys
share a hash tag, so that a cluster keeps them together and scripts may touch them all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from service.store.ages import AgeClock, Reading
from service.store.base import (
    MissingRecord,
    ResponseRecord,
    StoreBounds,
    StoreError,
)
from service.store.guard import FailureLog

R = TypeVar("R")

_TIMEOUT_S = 2.0

_PREFIX = "harmonium:{responses}:"
_USED, _SIZES, _TOTAL = _PREFIX + "used", _PREFIX + "sizes", _PREFIX + "bytes"
_CLOCK = _PREFIX + "clock"
_FIELDS = ("caller", "response", "input", "is_final", "previous_id", "beat_at")

# Shared by the scripts: KEYS are used, sizes, total; ARGV[1] is the key prefix.
_FORGET = """
local shares = ARGV[1] .. 'shares'
local function owner_of(id) return redis.call('HGET', ARGV[1] .. 'record:' .. id, 'caller') end
local function used_of(owner) return ARGV[1] .. 'used:' .. owner end
local function forget(id)
    local size = tonumber(redis.call('HGET', KEYS[2], id) or '0')
    local owner = owner_of(id)
    if owner and redis.call('ZREM', used_of(owner), id) == 1 then
        if tonumber(redis.call('ZINCRBY', shares, -size, owner)) <= 0 then
            redis.call('ZREM', shares, owner)
        end
    end
    redis.call('DECRBY', KEYS[3], size)
    redis.call('HDEL', KEYS[2], id)
    redis.call('ZREM', KEYS[1], id)
    redis.call('DEL', ARGV[1] .. 'record:' .. id, ARGV[1] .. 'pieces:' .. id)
end
local function grow(id, size, now)
    local owner = owner_of(id)
    redis.call('HINCRBY', KEYS[2], id, size)
    redis.call('INCRBY', KEYS[3], size)
    redis.call('ZADD', KEYS[1], now, id)
    redis.call('ZADD', used_of(owner), now, id)
    redis.call('ZINCRBY', shares, size, owner)
end
-- The least recently used of the owner who has most; before it, what has no share because an
-- earlier release wrote it.
local function next_to_go()
    local first = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
    local owner = first and owner_of(first)
    if not owner or not redis.call('ZSCORE', used_of(owner), first) then return first end
    local most = redis.call('ZRANGE', shares, 0, 0, 'REV')[1]
    return redis.call('ZRANGE', used_of(most), 0, 0)[1] or first
end
local function trim(oldest, max_bytes)
    for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', '(' .. oldest, 'BYSCORE')) do
        forget(id)
    end
    while tonumber(redis.call('GET', KEYS[3]) or '0') > max_bytes do
        local id = next_to_go()
        if not id then break end
        forget(id)
    end
end
"""

# id, now, oldest, max_bytes, pieces, size, field, value, ...
_PUT = (
    _FORGET
    + """
local id = ARGV[2]
redis.call('HSET', ARGV[1] .. 'record:' .. id, unpack(ARGV, 8))
if ARGV[6] ~= '' then redis.call('RPUSH', ARGV[1] .. 'pieces:' .. id, ARGV[6]) end
grow(id, tonumber(ARGV[7]), ARGV[3])
trim(ARGV[4], tonumber(ARGV[5]))
"""
)

# id, now, pieces, beat
_EXTEND = (
    _FORGET
    + """
local id, key = ARGV[2], ARGV[1] .. 'record:' .. ARGV[2]
if redis.call('HGET', key, 'is_final') ~= '0' then return 0 end
redis.call('HSET', key, 'beat_at', ARGV[5])
if ARGV[4] ~= '' then redis.call('RPUSH', ARGV[1] .. 'pieces:' .. id, ARGV[4]) end
grow(id, #ARGV[4], ARGV[3])
return redis.call('HEXISTS', key, 'is_stopping') == 1 and 0 or 1
"""
)

# id, now, oldest, max_bytes, response
_FINISH = (
    _FORGET
    + """
local id, key = ARGV[2], ARGV[1] .. 'record:' .. ARGV[2]
if redis.call('HGET', key, 'is_final') ~= '0' then return 0 end
grow(id, #ARGV[6] - redis.call('HSTRLEN', key, 'response'), ARGV[3])
redis.call('HSET', key, 'is_final', '1', 'response', ARGV[6])
trim(ARGV[4], tonumber(ARGV[5]))
return 1
"""
)

# id, now, oldest, owner
_READ = """
local key = ARGV[1] .. 'record:' .. ARGV[2]
local used = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[2]) or '-1')
if used < tonumber(ARGV[4]) or redis.call('HGET', key, 'caller') ~= ARGV[5] then return false end
redis.call('ZADD', KEYS[1], 'XX', ARGV[3], ARGV[2])
redis.call('ZADD', ARGV[1] .. 'used:' .. ARGV[5], 'XX', ARGV[3], ARGV[2])
return redis.call('HMGET', key, unpack(ARGV, 6))
"""

# id, owner
_DELETE = (
    _FORGET
    + """
if redis.call('HGET', ARGV[1] .. 'record:' .. ARGV[2], 'caller') ~= ARGV[3] then return 0 end
forget(ARGV[2])
return 1
"""
)

# id
_STOP = """
local key = ARGV[1] .. 'record:' .. ARGV[2]
if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'is_stopping', '1') end
"""


class RedisStore:
    """Implements service.store.base.ResponseStore."""

    def __init__(self, url: str, bounds: StoreBounds | None = None) -> None:
        self._redis = Redis.from_url(
            url,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            # A Redis that was restarted is asked again; one that hangs is not waited for twice.
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        )
        self._bounds = bounds or StoreBounds()
        self._ages = AgeClock(self._bounds.clock)
        self._failures = FailureLog()
        self._scripts = {
            text: self._redis.register_script(text)
            for text in (_PUT, _EXTEND, _FINISH, _READ, _DELETE, _STOP)
        }

    async def lasts(self) -> bool:
        """Return true: records outlive this process."""
        return True

    async def put(self, record: ResponseRecord, pieces: bytes = b"") -> None:
        """Add a record and its pieces, and forget what there is no room for, in one script."""
        age = await self._age()
        fields: dict[str, Any] = {
            "caller": record.owner,
            "response": record.response,
            "input": record.input,
            "is_final": int(record.is_final),
            "previous_id": record.previous_id or "",
            "beat_at": self._bounds.clock(),
        }
        pairs = [part for pair in fields.items() for part in pair]
        size = record.size + len(pieces)
        await self._call(_PUT, record.id, age, *self._limits(age), pieces, size, *pairs)

    async def extend(self, id: str, pieces: bytes) -> bool:
        """Add pieces to a running response; false when it was asked to stop, is final or gone."""
        age = await self._age()
        return bool(await self._call(_EXTEND, id, age, pieces, self._bounds.clock()))

    async def finish(self, id: str, response: bytes) -> bool:
        """Make a running response final; false when it was so before, or is gone."""
        age = await self._age()
        return bool(await self._call(_FINISH, id, age, *self._limits(age), response))

    async def get(self, id: str, owner: str) -> ResponseRecord:
        """Read the record of this id and owner, and note its use; raises MissingRecord."""
        now, age = self._bounds.clock(), await self._age()
        oldest = age - self._bounds.max_age_s
        values = await self._call(_READ, id, age, oldest, owner, *_FIELDS)
        if values is None:
            raise MissingRecord(id)
        return _record(id, values, now)

    async def pieces(self, id: str, start: int = 0) -> list[bytes]:
        """Read the batches of pieces from the one numbered `start` on."""
        key = f"{_PREFIX}pieces:{id}"
        return cast(list[bytes], await self._guarded(lambda: self._redis.lrange(key, start, -1)))

    async def request_stop(self, id: str) -> None:
        """Mark the record, which its run sees at its next extend()."""
        await self._call(_STOP, id)

    async def delete(self, id: str, owner: str) -> None:
        """Remove the record of this id and owner; raises MissingRecord."""
        if not await self._call(_DELETE, id, owner):
            raise MissingRecord(id)

    async def close(self) -> None:
        await self._redis.aclose()

    async def _age(self) -> float:
        """The time by which ages are counted; kept for all processes now and then."""
        return await self._guarded(self._agreed_age) if self._ages.is_due else self._ages.now()

    async def _agreed_age(self) -> float:
        wall, age = await self._redis.hmget(_CLOCK, ["wall", "age"])
        newest = await self._redis.zrange(_USED, 0, 0, desc=True, withscores=True)
        reading = self._ages.meet(
            None if wall is None or age is None else Reading(float(wall), float(age)),
            float(newest[0][1]) if newest else None,
        )
        await self._redis.hset(_CLOCK, mapping={"wall": reading.wall, "age": reading.age})
        return reading.age

    def _limits(self, age: float) -> tuple[float, int]:
        return age - self._bounds.max_age_s, self._bounds.max_bytes

    async def _call(self, script: str, id: str, *args: Any) -> Any:
        keys = [_USED, _SIZES, _TOTAL]
        return await self._guarded(lambda: self._scripts[script](keys, [_PREFIX, id, *args]))

    async def _guarded(self, work: Callable[[], Awaitable[R]]) -> R:
        try:
            return await work()
        except (RedisError, OSError) as error:
            self._failures.failed("The store of responses (Redis) failed: %s", error)
            raise StoreError(f"The store of responses (Redis) failed: {error}") from error


def _record(id: str, values: list[bytes], now: float) -> ResponseRecord:
    owner, response, input, is_final, previous_id, beat_at = values
    return ResponseRecord(
        id=id,
        owner=owner.decode(),
        response=response,
        input=input,
        is_final=is_final == b"1",
        previous_id=previous_id.decode() or None,
        idle_s=now - float(beat_at),
        beat_at=float(beat_at),
    )
