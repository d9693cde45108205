"""Ollama's API in an API worker: the names of the model, and the port."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from parts.ollama.settings import OllamaSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Ollama(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        port = settings.of(OllamaSettings).ollama_port
        if port is None:
            return runtime
        from parts.ollama.listening import listen_beside
        from parts.ollama.models import OllamaNames, names_of
        from service.run.server import MoreListeners

        names = names_of(runtime.model)
        model = replace(runtime.model, aliases=(*runtime.model.aliases, *names))
        own: tuple[object, ...] = (OllamaNames(names),)
        if port not in (0, settings.server_port):
            own += (MoreListeners(partial(listen_beside, settings.server_host, port)),)
        return replace(runtime, model=model, parts=(*runtime.parts, *own))


SERVING: Final = _Ollama()
