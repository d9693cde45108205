"""OpenAI's service tiers: who is served first, and what a refusal is called."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from service.errors import RequestError

AskedTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


class Tier(StrEnum):
    """What a request was served as, which answers tell."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"

    @property
    def priority(self) -> int:
        """In the queue and in the engine; jobs come after all of them."""
        return _PRIORITIES[self]


_PRIORITIES: Final = {Tier.PRIORITY: -1, Tier.DEFAULT: 0, Tier.FLEX: 1}
_MEANT: Final = {"flex": Tier.FLEX, "priority": Tier.PRIORITY, "fast": Tier.PRIORITY}


def tier_of(asked: AskedTier | None, most_urgent: int) -> Tier:
    """The tier of a request whose caller may be so urgent.

    As at OpenAI, a caller that may not have `priority` gets `default`, which the answer shows.
    """
    tier = _MEANT.get(asked or "auto", Tier.DEFAULT)
    return tier if tier.priority >= most_urgent else Tier.DEFAULT


def flex_unavailable(reason: str, retry_s: int) -> RequestError:
    """The refusal of a request of the tier flex, as OpenAI has it."""
    return RequestError(
        f"{reason} A request of service_tier default goes before those of flex.",
        status=429,
        type="rate_limit_error",
        code="resource_unavailable",
        headers={"Retry-After": str(retry_s)},
    )
