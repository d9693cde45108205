"""How an API worker finds answers that run in others."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Control(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        from parts.control.neighbours import Neighbours

        neighbours = Neighbours(runtime.answers, runtime.shared_folder)
        return replace(runtime, parts=(*runtime.parts, neighbours))

    def running(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        from parts.control.neighbours import Neighbours

        neighbours = runtime.of(Neighbours) or Neighbours(runtime.answers, None)
        return neighbours.listening()


SERVING: Final = _Control()
