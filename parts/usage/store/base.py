"""Where usage is kept: the contract of both stores.

Days are numbered from 1970-01-01, UTC. An account is what a budget is counted for: a key, and all
keys that replaced it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Final, NamedTuple, Protocol

DAY_S: Final = 86_400
KEPT_DAYS: Final = 90
EPOCH: Final = date(1970, 1, 1)


class UsageRow(NamedTuple):
    """What is counted together."""

    day: int
    caller: str  # empty when the API is open
    tenant: str
    model: str


class UsageCounts(NamedTuple):
    """What was used."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0  # of the input
    output_tokens: int = 0
    reasoning_tokens: int = 0  # of the output
    gpu_ms: int = 0  # milliseconds of a GPU; of the engine where it has none

    def plus(self, other: UsageCounts) -> UsageCounts:
        return UsageCounts(*map(sum, zip(self, other, strict=True)))


class Totals(NamedTuple):
    """The tokens of an account in a day, and in its month up to then."""

    of_day: int = 0
    of_month: int = 0


@dataclass(slots=True)
class Unwritten:
    """What one process has counted and not written."""

    rows: dict[UsageRow, UsageCounts] = field(default_factory=dict)
    accounts: dict[str, dict[int, int]] = field(default_factory=dict)  # their tokens by day
    uses: dict[str, int] = field(default_factory=dict)  # seconds since 1970 of a key's last use

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.accounts or self.uses)

    def spent(self) -> Iterator[tuple[str, int, int]]:
        """The tokens of each account and day."""
        for account, days in self.accounts.items():
            for day, tokens in days.items():
                yield account, day, tokens


class UsageStore(Protocol):
    """The counts; each call is one transaction, and raises StoreError."""

    async def write(self, batch: Unwritten, writer: str, number: int) -> None:
        """Add a batch. The same number of a writer, again, adds nothing: an answer may be lost."""

    async def totals(self, accounts: Collection[str], day: int) -> Mapping[str, Totals]:
        """What these accounts have used up to the end of that day."""

    async def rows(self, day: int, tenant: str | None) -> Mapping[UsageRow, UsageCounts]:
        """The rows of a day; without a tenant, of all."""

    async def uses(self) -> Mapping[str, int]:
        """The last use of each key."""


def first_of_month(day: int) -> int:
    """The number of the first day of its month."""
    return day - date_of(day).day + 1


def date_of(day: int) -> date:
    return EPOCH + timedelta(day)
