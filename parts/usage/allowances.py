"""What bounds a request's caller: the budgets of its key and of its tenant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

from auth.base import Principal, PrincipalLimits
from service.request import RequestContext

EVERY_TENANT: Final = "*"  # that is not named


class Allowance(NamedTuple):
    """A number of tokens that an account may use in a day or a month."""

    account: str
    limit: int
    period: Literal["day", "month"]
    whose: Literal["key", "tenant"]


class Allowances:
    """The budgets of keys, which their records name, and of the tenants given here."""

    def __init__(self, tenants: Mapping[str, PrincipalLimits]) -> None:
        self._tenants = tenants

    def of(self, context: RequestContext) -> tuple[Allowance, ...]:
        principal = context.principal
        if principal is None:
            return ()
        of_tenant = self._tenants.get(context.tenant) or self._tenants.get(EVERY_TENANT)
        return (
            *_of(account_of(principal), principal.limits, "key"),
            *_of(tenant_account(context), of_tenant, "tenant"),
        )


def accounts_of(context: RequestContext) -> tuple[str, ...]:
    """The accounts that a request's tokens are added to."""
    principal = context.principal
    return (account_of(principal), tenant_account(context)) if principal else ()


def account_of(principal: Principal) -> str:
    return principal.account or principal.id


def tenant_account(context: RequestContext) -> str:
    return f"tenant:{context.tenant}"  # no caller's id has a colon


def _of(
    account: str, limits: PrincipalLimits | None, whose: Literal["key", "tenant"]
) -> Iterator[Allowance]:
    if limits is None:
        return
    if limits.tokens_per_day:
        yield Allowance(account, limits.tokens_per_day, "day", whose)
    if limits.tokens_per_month:
        yield Allowance(account, limits.tokens_per_month, "month", whose)
