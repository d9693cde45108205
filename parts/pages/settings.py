"""The setting of the pages."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from service.settings.group import Group


@dataclass(frozen=True, slots=True)
class Disabled:
    """In a Runtime: the operator does not want the pages."""


class PagesSettings(Group):
    """Pages"""

    disable_playground: bool = Field(
        False, description="Disable the pages: `/` and `/docs` return 404. The API is unchanged."
    )


SETTINGS = PagesSettings
