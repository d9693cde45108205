"""After how long an idle engine sleeps."""

from __future__ import annotations

from pydantic import Field

from service.settings.group import Group


class SleepSettings(Group):
    """Sleep"""

    sleep_idle_s: float = Field(
        0.0,
        ge=0,
        description="Seconds without requests after which the engine's process ends and its memory "
        "is free; the next request starts it again and waits for it. 0: never.",
    )


SETTINGS = SleepSettings
