"""Jobs in Redis, for the workers of several hosts. Its clock is the Redis server's.

A hash for each job, a set of jobs for each kind by when they may be claimed, and counts of each
tenant's. The keys share a hash tag.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from service.jobs.base import (
    LEASE_S,
    LONGEST_S,
    MAX_AGE_S,
    MAX_PER_TENANT,
    Claim,
    Due,
    Job,
    TooManyJobs,
)
from service.store.base import ScriptDatabase

_PREFIX: Final = "harmonium:{jobs}:"

# KEYS[1] is the prefix of all keys, ARGV[1] the id. An owner of '': no worker has it.
_SHARED: Final = f"""
local id, key = ARGV[1], KEYS[1] .. 'job:' .. ARGV[1]
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local long_ago = now - 1e9  -- due whatever becomes of the clock, and in order
local function get(name) return redis.call('HGET', key, name) end
local function until_s(at)
    redis.call('HSET', key, 'until_s', at)
    redis.call('ZADD', KEYS[1] .. 'due:' .. get('kind'), at, id)
end
local function is_due()
    local at = tonumber(get('until_s') or '')
    return at and (at < now or at > now + {LONGEST_S})
end
local function is_of(fence) return get('fence') == fence and get('owner') ~= '' end
local function remove()
    local tenant = get('tenant')
    if not tenant then return end
    if redis.call('HINCRBY', KEYS[1] .. 'tenants', tenant, -1) <= 0 then
        redis.call('HDEL', KEYS[1] .. 'tenants', tenant)
    end
    redis.call('ZREM', KEYS[1] .. 'due:' .. get('kind'), id)
    redis.call('SREM', KEYS[1] .. 'stopping', id)
    redis.call('DEL', key)
end
local function claim(owner)
    if not is_due() then return false end
    local last = get('owner')
    if last ~= '' and last ~= owner then redis.call('HINCRBY', key, 'deaths', 1) end
    redis.call('HINCRBY', key, 'fence', 1)
    redis.call('HSET', key, 'owner', owner)
    until_s(now + {LEASE_S})
    return redis.call('HMGET', key, 'kind', 'tenant', 'input', 'fence', 'cursor', 'deaths',
        'put_at', 'is_stopping')
end
"""
# id, owner, kind, tenant, input, age
_PUT: Final = (
    _SHARED
    + f"""
if tonumber(redis.call('HGET', KEYS[1] .. 'tenants', ARGV[4]) or '0') >= {MAX_PER_TENANT} then
    return 'full'
end
redis.call('HINCRBY', KEYS[1] .. 'tenants', ARGV[4], 1)
redis.call('HSET', key, 'kind', ARGV[3], 'tenant', ARGV[4], 'input', ARGV[5], 'put_at', ARGV[6],
    'owner', '', 'cursor', '', 'fence', 0, 'deaths', 0, 'is_stopping', 0)
until_s(long_ago)
return ARGV[2] ~= '' and claim(ARGV[2])
"""
)
# id, owner
_CLAIM: Final = _SHARED + "return claim(ARGV[2])"
# id, fence, is_cleared, cursor (may be left out)
_RENEW: Final = (
    _SHARED
    + f"""
if not is_of(ARGV[2]) then return 0 end
if ARGV[3] == '1' then redis.call('HSET', key, 'deaths', 0) end
if ARGV[4] then redis.call('HSET', key, 'cursor', ARGV[4]) end
until_s(now + {LEASE_S})
return 1
"""
)
# id, fence, again_s (negative: it has ended)
_FINISH: Final = (
    _SHARED
    + """
if not is_of(ARGV[2]) then return 0 end
local again_s = tonumber(ARGV[3])
if again_s < 0 then
    remove()
else
    redis.call('HSET', key, 'owner', '')
    until_s(again_s > 0 and now + again_s or long_ago)
end
return 1
"""
)
# '', kind, limit, oldest
_DUE: Final = (
    _SHARED
    + f"""
local due, found = KEYS[1] .. 'due:' .. ARGV[2], {{}}
local function add(from, to)
    local ids = redis.call('ZRANGE', due, from, to, 'BYSCORE', 'LIMIT', 0, ARGV[3])
    for _, each in ipairs(ids) do
        id, key = each, KEYS[1] .. 'job:' .. each
        if tonumber(get('put_at') or '-inf') < tonumber(ARGV[4]) then
            remove()
        elseif #found < 2 * ARGV[3] then
            found[#found + 1] = id
            found[#found + 1] = tostring(get('deaths') + (get('owner') ~= '' and 1 or 0))
        end
    end
end
add('-inf', '(' .. now)
add('(' .. (now + {LONGEST_S}), '+inf')
return {{found, redis.call('SMEMBERS', KEYS[1] .. 'stopping')}}
"""
)
# id
_STOP: Final = (
    _SHARED
    + """
if redis.call('EXISTS', key) == 0 then return 0 end
redis.call('HSET', key, 'is_stopping', 1)
redis.call('SADD', KEYS[1] .. 'stopping', id)
if get('owner') == '' then until_s(long_ago) end
return 1
"""
)
_HAS: Final = _SHARED + "return redis.call('EXISTS', key)"


class RedisJobs:
    """Implements service.jobs.base.JobStore."""

    def __init__(self, database: ScriptDatabase) -> None:
        self._database = database

    async def put(self, job: Job, owner: str | None = None) -> Claim | None:
        age = await self._database.age()
        row = await self._call(_PUT, job.id, owner or "", job.kind, job.tenant, job.input, age)
        if row == b"full":
            raise TooManyJobs
        return await self._claim_of(job.id, row)

    async def claim(self, id: str, owner: str) -> Claim | None:
        return await self._claim_of(id, await self._call(_CLAIM, id, owner))

    async def renew(
        self, id: str, fence: int, cursor: bytes | None = None, *, is_cleared: bool = False
    ) -> bool:
        kept = () if cursor is None else (cursor,)
        return bool(await self._call(_RENEW, id, fence, int(is_cleared), *kept))

    async def finish(self, id: str, fence: int, again_s: float | None = None) -> bool:
        return bool(await self._call(_FINISH, id, fence, -1 if again_s is None else again_s))

    async def due(self, kinds: Collection[str], limit: int) -> Due:
        oldest = await self._database.age() - MAX_AGE_S
        claimable: list[tuple[str, int]] = []
        stopping: frozenset[str] = frozenset()
        for kind in kinds:
            found, stops = await self._call(_DUE, "", kind, limit, oldest)
            texts = [value.decode() for value in found]
            claimable += zip(texts[::2], map(int, texts[1::2]), strict=True)
            stopping = frozenset(id.decode() for id in stops)
        return Due(tuple(claimable[:limit]), stopping)

    async def stop(self, id: str) -> bool:
        return bool(await self._call(_STOP, id))

    async def has(self, id: str) -> bool:
        return bool(await self._call(_HAS, id))

    async def _call(self, script: str, *args: Any) -> Any:
        return await self._database.call(script, (_PREFIX,), args)

    async def _claim_of(self, id: str, row: list[bytes] | None) -> Claim | None:
        if not row:
            return None
        kind, tenant, input, fence, cursor, deaths, put_at, is_stopping = row
        age_s = max(await self._database.age() - float(put_at), 0.0)
        job = Job(id, kind.decode(), tenant.decode(), input)
        return Claim(job, int(fence), cursor, int(deaths), age_s, is_stopping == b"1")
