"""The policy of an API worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.moderations.settings import ModerationsSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Moderations(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        path = settings.of(ModerationsSettings).moderation_policy_path
        if path is None:
            return runtime
        from parts.moderations.policy import read_policy

        return replace(runtime, parts=(*runtime.parts, read_policy(path)))


SERVING: Final = _Moderations()
