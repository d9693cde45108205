"""The bounds of stored responses, for an API worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.responses.settings import ResponsesSettings
from parts.responses.store.base import StoreBounds
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Responses(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        own = settings.of(ResponsesSettings)
        bounds = StoreBounds(own.responses_max_age_s, own.responses_max_bytes)
        return replace(runtime, parts=(*runtime.parts, bounds))


SERVING: Final = _Responses()
