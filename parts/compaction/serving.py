"""The compactor of an API worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.compaction.settings import CompactionSettings
from service.run.wiring import ServingPart
from service.settings.group import words
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Compaction(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        from parts.compaction.model_compactor import ModelCompactor
        from service.sealing import Seals

        keys = settings.of(CompactionSettings).sealing_keys
        given = words(keys.get_secret_value()) if keys else []
        seals = Seals(runtime.database, given)
        compactor = ModelCompactor(runtime, seals)
        return replace(runtime, compactor=compactor, parts=(*runtime.parts, seals))


SERVING: Final = _Compaction()
