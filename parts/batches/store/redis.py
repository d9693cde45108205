"""Files and batches in Redis, for several replicas. What files hold lies in a folder they share.

A hash for each object, a set of each tenant's by when they were added, a set of all by when they
are removed, bytes by tenant, and by file how many batches have yet to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from parts.batches.store.base import (
    Kind,
    MissingObject,
    ObjectInUse,
    Page,
    Query,
    StorageBounds,
    StorageFull,
    StoredObject,
)
from service.store.base import ScriptDatabase

_PREFIX: Final = "harmonium:{batches}:"
_FIELDS: Final = (
    *("id", "kind", "tenant", "document", "until", "purpose", "content", "num_bytes", "uses"),
    "cancelled_at",
)

# KEYS[1] is the prefix of all keys, ARGV[1] the time by which ages are counted.
_SHARED: Final = f"""
local now = tonumber(ARGV[1])
local function key_of(id) return KEYS[1] .. 'object:' .. id end
local function get(id, name) return redis.call('HGET', key_of(id), name) end
local function listed(id) return KEYS[1] .. get(id, 'kind') .. ':' .. get(id, 'tenant') end
local function add_bytes(tenant, num)
    redis.call('HINCRBY', KEYS[1] .. 'bytes', tenant, num)
    redis.call('INCRBY', KEYS[1] .. 'total', num)
end
local function uses(id) return get(id, 'uses') or '' end
local function readers(id) return tonumber(redis.call('HGET', KEYS[1] .. 'readers', id) or '0') end
local function is_of(id, kind, tenant)
    return get(id, 'kind') == kind and get(id, 'tenant') == tenant
        and (tonumber(get(id, 'until')) >= now or uses(id) ~= '' or readers(id) > 0)
end
local function insert(at)  -- tenant, id, kind, until, num_bytes, uses, then all fields and values
    local tenant, id, num = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 7])
    redis.call('HSET', key_of(id), 'fence', 0, 'cancelled_at', 0, 'id', id, 'tenant', tenant,
        'kind', ARGV[at + 2], 'document', ARGV[at + 3], 'until', ARGV[at + 4],
        'purpose', ARGV[at + 5], 'content', ARGV[at + 6], 'num_bytes', num, 'uses', ARGV[at + 8])
    local place = redis.call('INCR', KEYS[1] .. 'place')
    redis.call('ZADD', listed(id), place, id)
    redis.call('ZADD', KEYS[1] .. 'until', ARGV[at + 4], id)
    add_bytes(tenant, num)
    if ARGV[at + 8] ~= '' then
        redis.call('HINCRBY', KEYS[1] .. 'readers', ARGV[at + 8], 1)
    end
end
local function remove(id)
    add_bytes(get(id, 'tenant'), 0 - tonumber(get(id, 'num_bytes')))  -- of 0, minus makes -0
    redis.call('ZREM', listed(id), id)
    redis.call('ZREM', KEYS[1] .. 'until', id)
    redis.call('DEL', key_of(id))
end
local function fields(id)
    return redis.call('HMGET', key_of(id), {", ".join(f"'{name}'" for name in _FIELDS)})
end
local function enter(id, fence, num)
    if uses(id) == '' or tonumber(get(id, 'fence')) > tonumber(fence) then return false end
    add_bytes(get(id, 'tenant'), num - tonumber(get(id, 'num_bytes')))
    redis.call('HSET', key_of(id), 'fence', fence, 'num_bytes', num)
    return true
end
local function rooms(tenant, most, most_of_tenant)
    local of_tenant = tonumber(redis.call('HGET', KEYS[1] .. 'bytes', tenant) or '0')
    return most - tonumber(redis.call('GET', KEYS[1] .. 'total') or '0'), most_of_tenant - of_tenant
end
"""
_NUM_OF_INSERT: Final = 9
# max_bytes, max_tenant_bytes, then what insert() takes
_PUT: Final = (
    _SHARED
    + """
local tenant, uses = ARGV[4], ARGV[12]
if uses ~= '' and not is_of(uses, 'file', tenant) then return 'missing' end
local room, room_of_tenant = rooms(tenant, ARGV[2], ARGV[3])
if tonumber(ARGV[11]) > math.min(room, room_of_tenant) then
    return room_of_tenant < room and 'full of tenant' or 'full'
end
insert(4)
return 'put'
"""
)
# kind, id, tenant
_GET: Final = _SHARED + "return is_of(ARGV[3], ARGV[2], ARGV[4]) and fields(ARGV[3])"
# kind, tenant, limit, after, is_ascending, purpose
_PAGE: Final = (
    _SHARED
    + """
local set, after, ascending = KEYS[1] .. ARGV[2] .. ':' .. ARGV[3], ARGV[5], ARGV[6] == '1'
local found, place = {}, false
if after ~= '' then
    if not is_of(after, ARGV[2], ARGV[3]) then return false end
    place = redis.call('ZSCORE', set, after)
end
local from, to = ascending and '-inf' or '+inf', ascending and '+inf' or '-inf'
if place then from = '(' .. place end
local offset = 0
while true do
    local ids
    if ascending then
        ids = redis.call('ZRANGE', set, from, to, 'BYSCORE', 'LIMIT', offset, 1000)
    else
        ids = redis.call('ZRANGE', set, from, to, 'BYSCORE', 'REV', 'LIMIT', offset, 1000)
    end
    for _, id in ipairs(ids) do
        if is_of(id, ARGV[2], ARGV[3]) and (ARGV[7] == '' or get(id, 'purpose') == ARGV[7]) then
            if #found == tonumber(ARGV[4]) then return {1, found} end
            found[#found + 1] = fields(id)
        end
    end
    if #ids < 1000 then return {0, found} end
    offset = offset + 1000
end
"""
)
# kind, id, tenant
_DELETE: Final = (
    _SHARED
    + """
local id = ARGV[3]
if not is_of(id, ARGV[2], ARGV[4]) then return false end
if uses(id) ~= '' or readers(id) > 0 then return 'used' end
local found = fields(id)
remove(id)
return found
"""
)
# id, fence, num_bytes, document (may be left out)
_WRITE: Final = (
    _SHARED
    + """
local id = ARGV[2]
if not enter(id, ARGV[3], tonumber(ARGV[4])) then return 0 end
if ARGV[5] then redis.call('HSET', key_of(id), 'document', ARGV[5]) end
return 1
"""
)
# id, fence, document, then what insert() takes of each file
_FINISH: Final = (
    _SHARED
    + f"""
local id = ARGV[2]
if not enter(id, ARGV[3], 0) then return 0 end
if redis.call('HINCRBY', KEYS[1] .. 'readers', uses(id), -1) <= 0 then
    redis.call('HDEL', KEYS[1] .. 'readers', uses(id))
end
redis.call('HSET', key_of(id), 'document', ARGV[4], 'uses', '')
for at = 5, #ARGV, {_NUM_OF_INSERT} do insert(at) end
return 1
"""
)
# id, tenant, at
_CANCEL: Final = (
    _SHARED
    + """
local id = ARGV[2]
if not is_of(id, 'batch', ARGV[3]) then return false end
if uses(id) ~= '' and get(id, 'cancelled_at') == '0' then
    redis.call('HSET', key_of(id), 'cancelled_at', ARGV[4])
end
return fields(id)
"""
)
# tenant, max_bytes, max_tenant_bytes
_ROOM: Final = _SHARED + "return math.min(rooms(ARGV[2], ARGV[3], ARGV[4]))"
# limit
_SWEEP: Final = (
    _SHARED
    + """
local contents = {}
-- Those that stay, batches that have not ended and their inputs, are no more than these.
local num_kept = 2 * redis.call('HLEN', KEYS[1] .. 'readers')
local ids = redis.call('ZRANGE', KEYS[1] .. 'until', '-inf', '(' .. now, 'BYSCORE',
    'LIMIT', 0, ARGV[2] + num_kept)
for _, id in ipairs(ids) do
    if uses(id) == '' and readers(id) == 0 then
        local content = get(id, 'content')
        if content ~= '' then contents[#contents + 1] = content end
        remove(id)
    end
end
return contents
"""
)


class RedisObjects:
    """Implements parts.batches.store.base.ObjectStore."""

    def __init__(self, database: ScriptDatabase, bounds: StorageBounds) -> None:
        self._database = database
        self._bounds = bounds

    async def put(self, new: StoredObject) -> None:
        age = await self._database.age()
        bounds = (self._bounds.max_bytes, self._bounds.max_tenant_bytes)
        match await self._call(_PUT, age, *bounds, *_inserted(new, age)):
            case b"missing":
                raise MissingObject(new.uses)
            case b"full":
                raise StorageFull
            case b"full of tenant":
                raise StorageFull(is_of_tenant=True)

    async def get(self, kind: Kind, id: str, tenant: str) -> StoredObject:
        return await self._found(_GET, id, kind, id, tenant)

    async def page(self, query: Query) -> Page:
        age = await self._database.age()
        found = await self._call(
            _PAGE,
            age,
            query.kind,
            query.tenant,
            query.limit,
            query.after or "",
            int(query.is_ascending),
            query.purpose or "",
        )
        if found is None:
            raise MissingObject(query.after or "")
        has_more, rows = found
        return Page(tuple(_object(row, age) for row in rows), bool(has_more))

    async def delete(self, kind: Kind, id: str, tenant: str) -> StoredObject:
        return await self._found(_DELETE, id, kind, id, tenant)

    async def write(self, id: str, fence: int, document: bytes | None, num_bytes: int = 0) -> bool:
        given = () if document is None else (document,)
        age = await self._database.age()
        return bool(await self._call(_WRITE, age, id, fence, num_bytes, *given))

    async def finish(
        self, id: str, fence: int, document: bytes, files: Sequence[StoredObject]
    ) -> bool:
        age = await self._database.age()
        inserted = [value for file in files for value in _inserted(file, age)]
        return bool(await self._call(_FINISH, age, id, fence, document, *inserted))

    async def cancel(self, id: str, tenant: str, at: int) -> StoredObject:
        return await self._found(_CANCEL, id, id, tenant, at)

    async def room(self, tenant: str) -> int:
        age = await self._database.age()
        bounds = (self._bounds.max_bytes, self._bounds.max_tenant_bytes)
        return int(await self._call(_ROOM, age, tenant, *bounds))

    async def sweep(self, limit: int) -> list[str]:
        found = await self._call(_SWEEP, await self._database.age(), limit)
        return [content.decode() for content in found]

    async def _call(self, script: str, *args: Any) -> Any:
        return await self._database.call(script, (_PREFIX,), args)

    async def _found(self, script: str, id: str, *args: Any) -> StoredObject:
        age = await self._database.age()
        row = await self._call(script, age, *args)
        if row is None:
            raise MissingObject(id)
        if row == b"used":
            raise ObjectInUse(id)
        return _object(row, age)


def _inserted(new: StoredObject, age: float) -> tuple[Any, ...]:
    """What insert() takes: _NUM_OF_INSERT values."""
    return (
        new.tenant,
        new.id,
        new.kind,
        new.document,
        age + new.lasts_s,
        new.purpose,
        new.content,
        new.num_bytes,
        new.uses,
    )


def _object(row: Sequence[bytes], age: float) -> StoredObject:
    id, kind, tenant, document, until, purpose, content, num_bytes, uses, cancelled_at = row
    return StoredObject(
        id.decode(),
        "file" if kind == b"file" else "batch",
        tenant.decode(),
        document,
        float(until) - age,
        purpose.decode(),
        content.decode(),
        int(num_bytes),
        uses.decode(),
        int(cancelled_at),
    )
