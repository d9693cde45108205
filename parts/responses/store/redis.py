"""Responses in Redis, for several replicas of the service.

One hash and one list a response, an index by last use for all and for each owner, and counts of
all bytes and of each owner's. The keys
share a hash tag, so that a cluster keeps them together and scripts may touch them all.
"""

from __future__ import annotations

from typing import Any, Final

from parts.responses.store.base import MissingRecord, ResponseRecord, StoreBounds
from service.store.base import ScriptDatabase

_PREFIX = "harmonium:{responses}:"
_USED, _SIZES, _TOTAL = _PREFIX + "used", _PREFIX + "sizes", _PREFIX + "bytes"
_FIELDS: Final = ("caller", "response", "input", "is_final", "previous_id", "beat_at")

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
    redis.call('DEL', ARGV[1] .. 'record:' .. id, ARGV[1] .. 'pieces:' .. id,
        ARGV[1] .. 'tokens:' .. id)
end
-- Become the writer of a running response, unless a later one has.
local function enter(key, fence)
    if redis.call('HGET', key, 'is_final') ~= '0' then return false end
    if tonumber(redis.call('HGET', key, 'fence') or '0') > tonumber(fence) then return false end
    redis.call('HSET', key, 'fence', fence)
    return true
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

# id, now, pieces, token ids, fence
_EXTEND = (
    _FORGET
    + """
local id, key = ARGV[2], ARGV[1] .. 'record:' .. ARGV[2]
if not enter(key, ARGV[6]) then return 0 end
if ARGV[4] ~= '' then redis.call('RPUSH', ARGV[1] .. 'pieces:' .. id, ARGV[4]) end
if ARGV[5] ~= '' then redis.call('APPEND', ARGV[1] .. 'tokens:' .. id, ARGV[5]) end
grow(id, #ARGV[4], ARGV[3])
return 1
"""
)

# id, now, oldest, max_bytes, response, pieces, fence
_FINISH = (
    _FORGET
    + """
local id, key = ARGV[2], ARGV[1] .. 'record:' .. ARGV[2]
if not enter(key, ARGV[8]) then return 0 end
grow(id, #ARGV[6] + #ARGV[7] - redis.call('HSTRLEN', key, 'response'), ARGV[3])
redis.call('HSET', key, 'is_final', '1', 'response', ARGV[6])
redis.call('HDEL', key, 'fence')
if ARGV[7] ~= '' then redis.call('RPUSH', ARGV[1] .. 'pieces:' .. id, ARGV[7]) end
redis.call('DEL', ARGV[1] .. 'tokens:' .. id)
trim(ARGV[4], tonumber(ARGV[5]))
return 1
"""
)

_PIECES = "return redis.call('LRANGE', ARGV[1] .. 'pieces:' .. ARGV[2], ARGV[3], -1)"
_TOKENS = "return redis.call('GET', ARGV[1] .. 'tokens:' .. ARGV[2])"

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


class RedisStore:
    """Implements service.store.base.ResponseStore."""

    def __init__(self, database: ScriptDatabase, bounds: StoreBounds | None = None) -> None:
        self.database = database
        self._bounds = bounds or StoreBounds()

    async def lasts(self) -> bool:
        return await self.database.lasts()

    async def put(self, record: ResponseRecord, pieces: bytes = b"") -> None:
        age = await self.database.age()
        fields: dict[str, Any] = {
            "caller": record.owner,
            "response": record.response,
            "input": record.input,
            "is_final": int(record.is_final),
            "previous_id": record.previous_id or "",
            "beat_at": record.beat_at,
        }
        pairs = [part for pair in fields.items() for part in pair]
        size = record.size + len(pieces)
        await self._call(_PUT, record.id, age, *self._limits(age), pieces, size, *pairs)

    async def extend(self, id: str, pieces: bytes, token_ids: bytes = b"", fence: int = 0) -> bool:
        age = await self.database.age()
        return bool(await self._call(_EXTEND, id, age, pieces, token_ids, fence))

    async def finish(self, id: str, response: bytes, pieces: bytes = b"", fence: int = 0) -> bool:
        age = await self.database.age()
        return bool(await self._call(_FINISH, id, age, *self._limits(age), response, pieces, fence))

    async def get(self, id: str, owner: str) -> ResponseRecord:
        age = await self.database.age()
        oldest = age - self._bounds.max_age_s
        values = await self._call(_READ, id, age, oldest, owner, *_FIELDS)
        if values is None:
            raise MissingRecord(id)
        return _record(id, values)

    async def pieces(self, id: str, start: int = 0) -> list[bytes]:
        batches: list[bytes] = await self._call(_PIECES, id, start)
        return batches

    async def token_ids(self, id: str) -> bytes:
        return await self._call(_TOKENS, id) or b""

    async def delete(self, id: str, owner: str) -> None:
        if not await self._call(_DELETE, id, owner):
            raise MissingRecord(id)

    def _limits(self, age: float) -> tuple[float, int]:
        return age - self._bounds.max_age_s, self._bounds.max_bytes

    async def _call(self, script: str, id: str, *args: Any) -> Any:
        return await self.database.call(script, (_USED, _SIZES, _TOTAL), (_PREFIX, id, *args))


def _record(id: str, values: list[bytes]) -> ResponseRecord:
    owner, response, input, is_final, previous_id, beat_at = values
    return ResponseRecord(
        id=id,
        owner=owner.decode(),
        response=response,
        input=input,
        is_final=is_final == b"1",
        previous_id=previous_id.decode() or None,
        beat_at=float(beat_at),
    )
