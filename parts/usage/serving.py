"""Counting in an API worker: every generation that the metrics see, and each use of a key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.usage.settings import UsageSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Usage(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        return counted(runtime, counts_all=settings.of(UsageSettings).usage)


def counted(runtime: Runtime, *, counts_all: bool) -> Runtime:
    """The runtime with a ledger; a key's budget holds in any case."""
    from parts.usage.budgets import TokenBudgets
    from parts.usage.ledger import Ledger, NotedKeys
    from parts.usage.stored import store_on

    ledger = Ledger(
        store_on(runtime.database), runtime.model.id, runtime.clock, counts_all=counts_all
    )
    runtime.metrics.observers.append(ledger.observe)
    runtime.gate.budgets = TokenBudgets(ledger, runtime.clock)
    authenticator = runtime.authenticator
    if authenticator is not None and counts_all:
        authenticator = NotedKeys(authenticator, ledger)
    return replace(runtime, parts=(*runtime.parts, ledger), authenticator=authenticator)


SERVING: Final = _Usage()
