"""The tool of an API worker; no sandbox starts before a call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.sandbox.settings import SandboxSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings
from service.tools import Toolboxes

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Python(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        is_known = "python" in runtime.format.builtins  # the model knows the tool
        if not (settings.of(SandboxSettings).has_python and is_known):
            return runtime
        from parts.sandbox.toolbox import PythonToolbox  # imported where it is used

        own = PythonToolbox()
        # Where an MCP server runs it as well, this one does.
        toolbox = own if runtime.toolbox is None else Toolboxes((own, runtime.toolbox))
        return replace(runtime, toolbox=toolbox)


SERVING: Final = _Python()
