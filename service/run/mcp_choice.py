"""Which built-in tools the settings connect."""

from __future__ import annotations

from importlib import import_module

from service.settings.settings import Settings
from service.tools.toolbox import Toolbox, ToolLimits


def toolbox_of(settings: Settings) -> Toolbox | None:
    """The connected tools, None if there is none; nothing is contacted before a call."""
    urls = {"browser": settings.browser_mcp_url, "python": settings.python_mcp_url}
    given = {tool: url.get_secret_value() for tool, url in urls.items() if url is not None}
    if not given:
        return None
    import_module("service.tools.connection")  # half a second, which no request shall wait for
    limits = ToolLimits(
        settings.mcp_timeout_s, settings.mcp_max_result_bytes, settings.mcp_max_calls
    )
    return Toolbox(given, limits)
