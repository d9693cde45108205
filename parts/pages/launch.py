"""What a start says of the pages."""

from __future__ import annotations

from typing import Final

from parts.pages.settings import PagesSettings
from service.run.launching import LaunchPart
from service.settings.settings import Settings


class _Pages(LaunchPart):
    def has_page(self, settings: Settings) -> bool:
        return not settings.of(PagesSettings).disable_playground


LAUNCH: Final = _Pages()
