"""The tools of a chat request: each has a name of its own, or is one that the server runs."""

from __future__ import annotations

from collections.abc import Sequence

from service.answer.hosted import BUILTIN_OF, Offer, offer_of
from service.api.chat.schema import BuiltinTool, ChatRequest, CustomTool, Tool
from service.errors import RequestError
from service.tools.toolbox import Toolbox


def check_names(tools: Sequence[Tool]) -> None:
    """Raise RequestError for a name that comes twice."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if isinstance(tool, BuiltinTool):
            continue
        name = tool.custom.name if isinstance(tool, CustomTool) else tool.function.name
        if name in seen:
            param = f"tools[{index}].{tool.type}.name"
            message = f"{param} repeats {name!r}; give each tool its own name."
            raise RequestError(message, param=param)
        seen.add(name)


def chat_offer(request: ChatRequest, toolbox: Toolbox | None) -> Offer:
    """The built-in tools; raises RequestError for one that is not connected."""
    wanted = {
        f"tools[{index}].type": BUILTIN_OF[tool.type]
        for index, tool in enumerate(request.tools or ())
        if isinstance(tool, BuiltinTool)
    }
    if request.web_search_options is not None:
        wanted["web_search_options"] = "browser"
    for param, tool in wanted.items():
        if toolbox is None or tool not in toolbox.tools:
            raise RequestError(
                f"{param} asks for the built-in tool {tool!r}, which is not connected to this "
                f"server (NIM_{tool.upper()}_MCP_URL); offer a function that does the same.",
                param=param,
                code="unsupported_value",
            )
    return offer_of(toolbox, wanted.values(), is_hidden=request.tool_choice == "none")
