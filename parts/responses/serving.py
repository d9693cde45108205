"""The bounds of stored responses and the names of events, for an API worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.responses.answer.events import OPEN_RESPONSES_NAMES, OPENAI_NAMES, DefaultNames
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
        names = DefaultNames(OPEN_RESPONSES_NAMES if own.open_responses else OPENAI_NAMES)
        return replace(runtime, parts=(*runtime.parts, bounds, names))


SERVING: Final = _Responses()
