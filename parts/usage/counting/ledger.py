"""What this process counts: a dictionary that each answer changes, written once a second.

What was not written when the process is killed is lost: the answers that ended within the last
WRITE_S, and those that had not ended. While the store is away it all waits here.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from auth.base import Authenticator, Credentials, Principal
from engines.base import Engine
from engines.errors import EngineError
from parts.usage.allowances import Allowances, accounts_of
from parts.usage.counting.engine_time import PART, EngineSeconds
from parts.usage.store.base import DAY_S, Totals, Unwritten, UsageCounts, UsageRow, UsageStore
from service.request import RequestContext
from service.store.base import StoreError

if TYPE_CHECKING:
    from service.answer.generation import Generation

log = logging.getLogger("harmonium.usage")

WRITE_S: Final = 1.0
_AGAIN_S: Final = 5.0  # after the store failed
_LAST_S: Final = 2.0  # that a stop waits for the store
NOTHING: Final = UsageCounts()


class Ledger:
    """The counts of one process, on their way to the store."""

    def __init__(
        self,
        store: UsageStore,
        model: str,
        clock: Callable[[], float],
        allowances: Allowances,
        engine: Engine | None,
        *,
        counts_all: bool,
    ) -> None:
        """`counts_all`: or the callers with a budget alone. `engine`: whose seconds are counted."""
        self.store, self.allowances = store, allowances
        self._model, self._clock, self.counts_all = model, clock, counts_all
        self._batch = Unwritten()
        self._sent: Unwritten | None = None  # with the number below; perhaps it was written
        self._number = 0
        self._writer = uuid.uuid4().hex
        self._engine, self._seconds = engine, EngineSeconds(self._writer)
        self._writing: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._asking = asyncio.Lock()  # the engine: its answers have to come in order

    @property
    def today(self) -> int:
        return int(self._clock() // DAY_S)

    def observe(self, generation: Generation) -> None:
        """Count a generation that has ended, for any reason."""
        context = generation.plan.context
        principal = context.principal
        if not (self.counts_all or self.allowances.of(context)) or not generation.was_computed:
            return
        caller, adapter = principal.id if principal else "", generation.plan.adapter
        model = self._model if adapter is None else adapter.name
        row = UsageRow(self.today, caller, context.tenant, model)
        counts = UsageCounts(
            1,
            generation.num_prompt_tokens,
            generation.num_cached_tokens,
            generation.num_completion_tokens,
            generation.num_reasoning_tokens,
        )
        rows, accounts = self._batch.rows, self._batch.accounts
        rows[row] = rows.get(row, NOTHING).plus(counts)
        tokens = counts.input_tokens + counts.output_tokens
        for account in accounts_of(context):
            days = accounts.setdefault(account, {})
            days[row.day] = days.get(row.day, 0) + tokens
        self._wake()

    def name_account(self, context: RequestContext) -> None:
        """Name for the engine whose the seconds of this request's steps are."""
        if self._engine is not None:
            caller = context.principal.id if context.principal else ""
            name = msgspec.json.encode((caller, context.tenant)).decode()
            context.notes.for_engine[PART] = self._seconds.account(name)

    def note_use(self, principal: Principal) -> None:
        """Note that a key was used just now; other callers have no entry in `keys list`."""
        if principal.id.startswith("key-"):
            self._batch.uses[principal.id] = int(self._clock())
            self._wake()

    @property
    def num_written(self) -> int:
        """How many batches the store has."""
        return self._number - (self._sent is not None)

    def unwritten(self, account: str) -> Iterator[tuple[int, int]]:
        """Days, each with the tokens of an account that the store may not know yet."""
        for batch in (self._batch, self._sent):
            if batch is not None and account in batch.accounts:
                yield from batch.accounts[account].items()

    async def totals(self, account: str, day: int) -> Totals:
        """What the store knows of an account while nothing is on its way; raises StoreError."""
        async with self._lock:
            return (await self.store.totals((account,), day))[account]

    async def write(self) -> None:
        """Write what was counted; raises StoreError, after which it is tried again."""
        await self._count_seconds()
        async with self._lock:
            while self._sent is not None or not self._batch.is_empty:
                if self._sent is None:
                    self._sent, self._batch = self._batch, Unwritten()
                    self._number += 1
                await self.store.write(self._sent, self._writer, self._number)
                self._sent = None

    async def _count_seconds(self) -> None:
        """Add what the engine has told since the last call; one that is away tells it later.

        Without the lock of the store, which budgets wait for: an engine may take seconds to answer.
        """
        if self._engine is None:
            return
        async with self._asking:
            try:
                if self._engine.info.engine != "native":
                    return  # others do not tell it
                stats = await self._engine.stats()
            except EngineError:
                return
            for name, adapter, num_ms in self._seconds.new(stats):
                caller, tenant = msgspec.json.decode(name)
                row = UsageRow(self.today, caller, tenant, adapter or self._model)
                counts = self._batch.rows.get(row, NOTHING)
                self._batch.rows[row] = counts.plus(UsageCounts(gpu_ms=num_ms))

    async def close(self) -> None:
        """Write the rest."""
        if self._writing is not None:
            self._writing.cancel()
        try:
            async with asyncio.timeout(_LAST_S):
                await self.write()
        except (StoreError, TimeoutError) as error:
            log.error("The usage of the last seconds is lost: %s", error or "no answer in time")

    def _wake(self) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_soon(), name="usage")

    async def _write_soon(self) -> None:
        wait_s = WRITE_S
        while not self._batch.is_empty or self._sent is not None:
            await asyncio.sleep(wait_s)
            try:
                await self.write()
                wait_s = WRITE_S
            except StoreError:  # the database logs it
                wait_s = _AGAIN_S
        self._writing = None


class NotedKeys:
    """An authenticator whose keys' last use is noted."""

    def __init__(self, authenticator: Authenticator, ledger: Ledger) -> None:
        self._authenticator, self._ledger = authenticator, ledger

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        principal = await self._authenticator.authenticate(credentials)
        if principal is not None:
            self._ledger.note_use(principal)
        return principal
