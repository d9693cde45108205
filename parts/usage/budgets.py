"""Token budgets of keys and tenants: a number a day, a number a month, UTC.

A request is refused once the rest is gone. What runs then is answered to its end, so a budget is
passed by at most the answers that run, and by what other workers and servers have let in since
this one last asked the store: READ_S, and WRITE_S until they write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Final

from parts.usage.allowances import Allowance
from parts.usage.counting.ledger import Ledger
from parts.usage.store.base import Totals, date_of, first_of_month
from service.admission.gate import Budgets
from service.errors import RequestError
from service.request import RequestContext
from service.store.base import StoreError

if TYPE_CHECKING:
    from service.answer.generation import Generation

log = logging.getLogger("harmonium.usage")

READ_S: Final = 1.0
_MOST: Final = 10_000  # accounts whose totals are remembered
_REMEDIES: Final = {"key": "harmonium keys set --budget-tokens", "tenant": "NIM_TENANT_BUDGETS"}


@dataclass(slots=True)
class _Known:
    """What the store said of an account."""

    totals: Totals
    day: int
    num_written: int  # batches of this process that are part of it
    read_at: float  # on the loop's clock


class TokenBudgets(Budgets):
    """Implements service.admission.gate.Budgets."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger, self._clock = ledger, clock
        self._known: dict[str, _Known] = {}
        self._running: dict[str, int] = {}  # prompt tokens of an account's requests that run here

    async def check(self, context: RequestContext) -> None:
        allowances = self._ledger.allowances.of(context)
        if not allowances:
            return
        # Of several that are used up the one that is reset last.
        rests = [(max(await self._rest(bound), 0), bound.period != "month") for bound in allowances]
        (left, _), bound = min(zip(rests, allowances, strict=True))
        headers = context.notes.headers
        headers["x-harmonium-budget-remaining"] = str(left)
        if not left:
            raise self._refusal(bound)

    @asynccontextmanager
    async def hold(self, generation: Generation) -> AsyncIterator[None]:
        context = generation.plan.context
        self._ledger.name_account(context)
        accounts = {bound.account for bound in self._ledger.allowances.of(context)}
        # One that continues after its worker's end was let in before.
        if not accounts or generation.plan.is_resumed:
            yield
            return
        await self.check(context)
        num_prompt = generation.num_prompt_tokens
        for account in accounts:
            self._running[account] = self._running.get(account, 0) + num_prompt
        try:
            yield
        finally:
            for account in accounts:
                self._running[account] -= num_prompt
                if not self._running[account]:
                    del self._running[account]

    async def close(self) -> None:
        await self._ledger.close()

    async def _rest(self, bound: Allowance) -> int:
        """What is left of a budget."""
        day = self._ledger.today
        of_day, of_month = await self._totals(bound.account, day)
        for spent, tokens in self._ledger.unwritten(bound.account):
            of_day += tokens if spent == day else 0
            of_month += tokens if spent >= first_of_month(day) else 0
        used = of_month if bound.period == "month" else of_day
        return bound.limit - used - self._running.get(bound.account, 0)

    async def _totals(self, account: str, day: int) -> Totals:
        """As the store has them; while it is away, as it last said."""
        known, now = self._known.get(account), asyncio.get_running_loop().time()
        num_written = self._ledger.num_written
        if known is not None and known.day == day:
            if known.num_written == num_written and now < known.read_at + READ_S:
                return known.totals
        else:
            known = None
        try:
            totals = await self._ledger.totals(account, day)
        except StoreError:
            log.warning("The budget of %s cannot be read: only what is known here counts", account)
            totals = known.totals if known else Totals()
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[account] = _Known(totals, day, num_written, now)
        return totals

    def _refusal(self, bound: Allowance) -> RequestError:
        whose, period = bound.whose, bound.period
        today = date_of(self._ledger.today)
        following = today + timedelta(1)
        if period == "month":
            following = (today.replace(day=1) + timedelta(32)).replace(day=1)
        reset_at = datetime(following.year, following.month, following.day, tzinfo=UTC)
        wait_s = max(ceil(reset_at.timestamp() - self._clock()), 1)
        reset = reset_at.isoformat().replace("+00:00", "Z")
        return RequestError(
            f"The {whose}'s budget of {bound.limit} tokens a {period} is used up; the next "
            f"{period} begins at {reset}. An administrator can raise it: {_REMEDIES[whose]}.",
            status=429,
            type="insufficient_quota",
            code="insufficient_quota",
            headers={
                "Retry-After": str(wait_s),
                "x-harmonium-budget-reset": reset,
                "x-should-retry": "false",  # which OpenAI's and Anthropic's SDKs obey
            },
        )
