"""By which policy texts are moderated."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from service.settings.group import Group


class ModerationsSettings(Group):
    """Moderations"""

    moderation_policy_path: Path | None = Field(
        None,
        description="YAML file with the policy of `/v1/moderations`: its categories, what each "
        "forbids and from which score on. Unset: the route answers 404.",
    )

    @field_validator("moderation_policy_path")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value is not None else None


SETTINGS = ModerationsSettings
