"""The tools of an API worker; no sandbox starts before a call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.sandbox.settings import SandboxSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings
from service.tools import ConnectedTool, with_tools

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Sandboxed(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        own = settings.of(SandboxSettings)
        known = runtime.format.builtins  # that the model knows
        here = {name: at for name, at in own.tools_here.items() if name in known}
        if not here:
            return runtime
        from parts.sandbox.runners import browser, python  # imported where they are used

        tools: dict[str, ConnectedTool] = {}
        if "python" in here:
            tools["python"] = python(here["python"])
        if "browser" in here:
            tools["browser"] = browser(own.search_service, here["browser"])
        # Where an MCP server runs one as well, this one does.
        return replace(runtime, toolbox=with_tools(runtime.toolbox, tools))


SERVING: Final = _Sandboxed()
