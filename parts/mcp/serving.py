"""The connected tools of an API worker; no server is contacted before a call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from parts.mcp.settings import ToolSettings
from service.run.wiring import ServingPart
from service.settings.settings import Settings
from service.tools import with_tools

if TYPE_CHECKING:
    from service.runtime import Runtime


class _Tools(ServingPart):
    def wire(self, runtime: Runtime, settings: Settings) -> Runtime:
        own = settings.of(ToolSettings)
        urls = {"browser": own.browser_mcp_url, "python": own.python_mcp_url}
        known = runtime.format.builtins  # the tools that the model knows
        given = {
            tool: url.get_secret_value()
            for tool, url in urls.items()
            if url is not None and tool in known
        }
        if not given:
            return runtime
        # Imports of half a second, which no request shall wait for.
        from parts.mcp.runner import mcp_tools

        tools = mcp_tools(given, own.mcp_timeout_s)
        return replace(runtime, toolbox=with_tools(runtime.toolbox, tools))


SERVING: Final = _Tools()
