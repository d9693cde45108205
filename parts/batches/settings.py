"""Where files are kept, and how much of them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from service.settings.group import Group


class BatchesSettings(Group):
    """Batches"""

    files_path: Path | None = Field(
        None,
        description="Folder for uploaded files and the results of batches. Servers with a common "
        "`NIM_REDIS_URL` need a folder that all of them share. Unset: `files` in the cache.",
    )
    files_max_bytes: int = Field(
        10 << 30,
        ge=1 << 20,
        description="Maximum total size of these files. One tenant may use half of it.",
    )

    @field_validator("files_path")
    @classmethod
    def _expand(cls, value: Path | None) -> Path | None:
        return value.expanduser() if value is not None else None


SETTINGS = BatchesSettings
