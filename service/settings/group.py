"""A group of settings, under one title in docs and help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic_settings import BaseSettings

# In `json_schema_extra` of a field with a pattern: what values it takes, in words.
SHAPE: Final = "shape"


class Group(BaseSettings):
    """Settings that belong together; its first docstring line is their title."""

    of_engine: ClassVar[tuple[str, ...]] = ()  # fields that decide about the engine
    secrets: ClassVar[tuple[str, ...]] = ()  # fields that no log or help may show
    of_access: ClassVar[tuple[str, ...]] = ()  # fields that make callers known, where they are set
    variables: ClassVar[tuple[str, ...]] = ()  # NIM_* that `standard` reads, and are no fields
    constants: ClassVar[Mapping[str, str]] = {}  # former fields, with their values now

    @classmethod
    def standard(cls, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """By setting, a variable of another standard that sets it, and the value.

        Raises ValueError for a value that cannot be used.
        """
        return {}


def words(joined: str) -> list[str]:
    """The comma-separated parts."""
    return [word.strip() for word in joined.split(",") if word.strip()]
