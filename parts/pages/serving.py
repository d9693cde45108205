"""Whether an API worker serves the pages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.pages.settings import Disabled, PagesSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Pages(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        from parts.pages.routes import lost
        from service.http.answers import LostPage

        is_off = settings.of(PagesSettings).disable_playground
        return replace(runtime, parts=(*runtime.parts, Disabled() if is_off else LostPage(lost)))


SERVING: Final = _Pages()
