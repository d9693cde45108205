"""Usage in Redis, of all replicas.

A hash of counts for each day and tenant, one of GPU time, a set of each day's tenants, a hash of
each day's tokens by account, one of last uses, and the last batch of each writer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from parts.usage.store.base import (
    DAY_S,
    KEPT_DAYS,
    Totals,
    Unwritten,
    UsageCounts,
    UsageRow,
    first_of_month,
)
from service.store.base import ScriptDatabase

_PREFIX: Final = "harmonium:{usage}:"
_KEPT_S: Final = KEPT_DAYS * DAY_S

# writer, number, seconds that it is kept, then three lists in JSON: [day, tenant, field, number,
# hash], [day, account, tokens] and [caller, seconds]
_WRITE: Final = """
local writer = KEYS[1] .. 'writer:' .. ARGV[1]
if tonumber(redis.call('GET', writer) or '-1') >= tonumber(ARGV[2]) then return 0 end
redis.call('SET', writer, ARGV[2], 'EX', 86400)
local function keep(key) redis.call('EXPIRE', key, ARGV[3]) end
for _, row in ipairs(cjson.decode(ARGV[4])) do
    local rows = KEYS[1] .. row[5] .. ':' .. row[1] .. ':' .. row[2]
    local tenants = KEYS[1] .. 'tenants:' .. row[1]
    redis.call('HINCRBY', rows, row[3], row[4])
    redis.call('SADD', tenants, row[2])
    keep(rows)
    keep(tenants)
end
for _, row in ipairs(cjson.decode(ARGV[5])) do
    local accounts = KEYS[1] .. 'accounts:' .. row[1]
    redis.call('HINCRBY', accounts, row[2], row[3])
    keep(accounts)
end
for _, row in ipairs(cjson.decode(ARGV[6])) do
    local uses = KEYS[1] .. 'uses'
    if tonumber(redis.call('HGET', uses, row[1]) or '0') < tonumber(row[2]) then
        redis.call('HSET', uses, row[1], row[2])
    end
end
return 1
"""
# first day, last day, accounts
_TOTALS: Final = """
local found = {}
for at = 3, #ARGV do
    local of_day, of_month = '0', 0
    for day = ARGV[1], ARGV[2] do
        local accounts = KEYS[1] .. 'accounts:' .. string.format('%d', day)
        of_day = redis.call('HGET', accounts, ARGV[at]) or '0'
        of_month = of_month + tonumber(of_day)
    end
    found[#found + 1] = of_day
    found[#found + 1] = string.format('%.0f', of_month)
end
return found
"""
# day
_TENANTS: Final = "return redis.call('SMEMBERS', KEYS[1] .. 'tenants:' .. ARGV[1])"
# A hash of its own: servers of the release before do not know the field.
_HASHES: Final = {"gpu_ms": "gpu"}
# hash, day, tenant
_ROWS: Final = "return redis.call('HGETALL', KEYS[1] .. table.concat(ARGV, ':'))"
_USES: Final = "return redis.call('HGETALL', KEYS[1] .. 'uses')"

_json: Final = msgspec.json.encode


class RedisUsage:
    """Implements parts.usage.store.base.UsageStore."""

    def __init__(self, database: ScriptDatabase) -> None:
        self._database = database

    async def write(self, batch: Unwritten, writer: str, number: int) -> None:
        rows = [
            # As text: numbers of Lua are doubles, and a day would be written as one.
            (str(row.day), row.tenant, _field(row, name), str(num), _HASHES.get(name, "rows"))
            for row, counts in batch.rows.items()
            for name, num in zip(UsageCounts._fields, counts, strict=True)
            if num
        ]
        accounts = [(str(day), account, str(num)) for account, day, num in batch.spent()]
        uses = [(caller, str(at)) for caller, at in batch.uses.items()]
        await self._call(
            _WRITE, writer, number, _KEPT_S + 31 * DAY_S, _json(rows), _json(accounts), _json(uses)
        )

    async def totals(self, accounts: Collection[str], day: int) -> Mapping[str, Totals]:
        found = await self._call(_TOTALS, first_of_month(day), day, *accounts)
        pairs = _pairs([int(each) for each in found])
        return {account: Totals(*pair) for account, pair in zip(accounts, pairs, strict=True)}

    async def rows(self, day: int, tenant: str | None) -> Mapping[UsageRow, UsageCounts]:
        tenants = [tenant]
        if tenant is None:
            tenants = [each.decode() for each in await self._call(_TENANTS, day)]
        rows: dict[UsageRow, UsageCounts] = {}
        for each in tenants:
            counts = [await self._call(_ROWS, name, day, each) for name in ("rows", "gpu")]
            for field, num in chain.from_iterable(map(_pairs, counts)):
                caller, model, name = msgspec.json.decode(field)
                row = UsageRow(day, caller, each or "", model)
                rows[row] = rows.get(row, UsageCounts())._replace(**{name: int(num)})
        return rows

    async def uses(self) -> Mapping[str, int]:
        return {key.decode(): int(at) for key, at in _pairs(await self._call(_USES))}

    async def _call(self, script: str, *args: Any) -> Any:
        return await self._database.call(script, (_PREFIX,), args)


def _field(row: UsageRow, name: str) -> str:
    return _json((row.caller, row.model, name)).decode()


def _pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)
