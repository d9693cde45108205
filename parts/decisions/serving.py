"""Who answers the questions of an API worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Decisions(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        from parts.decisions.decider import LabelDecider

        return replace(runtime, parts=(*runtime.parts, LabelDecider(runtime)))


SERVING: Final = _Decisions()
