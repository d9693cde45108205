"""Whether usage is counted."""

from __future__ import annotations

from pydantic import Field

from service.settings.group import Group


class UsageSettings(Group):
    """Usage"""

    usage: bool = Field(
        False,
        description="Count requests and tokens by key, tenant, model and day, and keep the last "
        "use of each key. A key with a token budget is counted anyway.",
    )


SETTINGS = UsageSettings
