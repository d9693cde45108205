"""With which keys compacted conversations are sealed."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, SecretStr, field_validator

from service.settings.group import Group, words
from service.settings.secret import checked_secret


class CompactionSettings(Group):
    """Compaction"""

    secrets: ClassVar[tuple[str, ...]] = ("sealing_keys",)

    sealing_keys: SecretStr | None = Field(
        None,
        description="Secrets with which replicas encrypt what clients keep for them, such as "
        "compacted conversations; comma-separated. The first encrypts, all decrypt. Unset: the "
        "database of stored responses has one.",
    )

    @field_validator("sealing_keys")
    @classmethod
    def _check_sealing_keys(cls, value: SecretStr | None) -> SecretStr | None:
        for secret in words(value.get_secret_value()) if value else ():
            if len(secret) < 16:
                raise ValueError("each secret needs at least 16 characters")
            checked_secret(SecretStr(secret))
        return value


SETTINGS = CompactionSettings
