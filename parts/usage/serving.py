"""Counting in an API worker: every generation that the metrics see, and each use of a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from auth.base import PrincipalLimits
from parts.usage.settings import UsageSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Usage(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        ours = settings.of(UsageSettings)
        return counted(runtime, ours.budgets_of_tenants, counts_all=ours.usage)


def counted(
    runtime: Runtime, tenants: Mapping[str, PrincipalLimits], *, counts_all: bool
) -> Runtime:
    """The runtime with a ledger; budgets hold in any case."""
    from parts.usage.allowances import Allowances
    from parts.usage.budgets import TokenBudgets
    from parts.usage.counting.ledger import Ledger, NotedKeys
    from parts.usage.counting.stored import store_on

    store, model, clock = store_on(runtime.database), runtime.model.id, runtime.clock
    engine = runtime.engine if counts_all else None
    ledger = Ledger(store, model, clock, Allowances(tenants), engine, counts_all=counts_all)
    runtime.metrics.observers.append(ledger.observe)
    runtime.gate.budgets = TokenBudgets(ledger, runtime.clock)
    authenticator = runtime.authenticator
    if authenticator is not None and counts_all:
        authenticator = NotedKeys(authenticator, ledger)
    return replace(runtime, parts=(*runtime.parts, ledger), authenticator=authenticator)


SERVING: Final = _Usage()
