"""Whether usage is counted, and what tenants may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydantic import Field, field_validator

from auth.base import PrincipalLimits
from service.settings.group import Group, words

_BUDGET: Final = re.compile(r"(.+)=([1-9][0-9]{0,17})/(day|month)")


class UsageSettings(Group):
    """Usage"""

    usage: bool = Field(
        False,
        description="Count requests and tokens by key, tenant, model and day, and keep the last "
        "use of each key. A key or tenant with a token budget is counted anyway.",
    )
    tenant_budgets: str = Field(
        "",
        description="Tokens that tenants may use in a day or month (UTC), all keys and tokens "
        "of one together, e.g. `acme=5000000/month,acme=300000/day,*=100000/day`; `*`: each "
        "tenant that is not named.",
    )

    @field_validator("tenant_budgets")
    @classmethod
    def _check_budgets(cls, value: str) -> str:
        _parsed(value)
        return value

    @property
    def budgets_of_tenants(self) -> Mapping[str, PrincipalLimits]:
        return _parsed(self.tenant_budgets)


def _parsed(given: str) -> dict[str, PrincipalLimits]:
    """Raises ValueError that names the entry that is wrong."""
    found: dict[str, PrincipalLimits] = {}
    for word in words(given):
        match = _BUDGET.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is not TENANT=TOKENS/day or TENANT=TOKENS/month")
        tenant, field = match[1].strip(), f"tokens_per_{match[3]}"
        limits = found.get(tenant, PrincipalLimits())
        if getattr(limits, field) is not None:
            raise ValueError(f"{tenant!r} has two budgets a {match[3]}: leave one out")
        found[tenant] = replace(limits, **{field: int(match[2])})
    return found


SETTINGS = UsageSettings
