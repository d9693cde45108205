"""The address of the Redis."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, SecretStr, field_validator

from service.settings.group import Group


class RedisSettings(Group):
    """Redis"""

    secrets: ClassVar[tuple[str, ...]] = ("redis_url",)

    redis_url: SecretStr | None = Field(
        None,
        description="A Redis that stores responses for several replicas, e.g. "
        "`redis://host:6379/0`. Unset: the SQLite file.",
    )

    @field_validator("redis_url")
    @classmethod
    def _check_scheme(cls, value: SecretStr | None) -> SecretStr | None:
        if value and not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("the URL must begin with redis://, rediss:// or unix://")
        return value


SETTINGS = RedisSettings
