"""The tools of a response request: their names, what the model reads of them, which it may call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parts.responses.schemas.request import ContextRequest, ResponseRequest
from parts.responses.schemas.tools import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    NamedBuiltin,
    NamedFunction,
    NamedNamespace,
    NamespaceTool,
)
from service.answer.plan import BUILTIN_OF, OfferedTools, offered_tools
from service.api.common.schema import free_text
from service.conversation import Tool, qualified_name
from service.errors import RequestError
from service.guide.answer import ToolChoice
from service.runtime import Runtime


def names_of(request: ContextRequest) -> Iterator[tuple[str, str]]:
    """The qualified name of each client's tool, by the field that has it."""
    for index, tool in enumerate(request.tools or ()):
        if isinstance(tool, NamespaceTool):
            for place, inner in enumerate(tool.tools):
                name = qualified_name(inner.name, tool.name)
                yield f"tools[{index}].tools[{place}].name", name
        elif isinstance(tool, FunctionTool | CustomTool):
            yield f"tools[{index}].name", tool.name


def offered_builtins(request: ContextRequest, runtime: Runtime) -> OfferedTools:
    wanted = {BUILTIN_OF.get(tool.type) for tool in request.tools or ()} - {None}
    return offered_tools(
        runtime.toolbox,
        [name for name in wanted if name],
        is_hidden=request.tool_choice == "none",
        max_calls=request.max_tool_calls if isinstance(request, ResponseRequest) else None,
    )


def tools_of(request: ContextRequest) -> tuple[Tool, ...]:
    """The client's tools in the renderer's terms; built-in tools are not among them."""
    tools: list[Tool] = []
    for index, tool in enumerate(request.tools or ()):
        field = f"tools[{index}]"
        if isinstance(tool, NamespaceTool):
            inside = enumerate(tool.tools)
            tools += [_tool(inner, f"{field}.tools[{at}]", tool.name) for at, inner in inside]
        elif isinstance(tool, FunctionTool | CustomTool):
            tools.append(_tool(tool, field))
    return tuple(tools)


def _tool(tool: FunctionTool | CustomTool, field: str, namespace: str | None = None) -> Tool:
    name, description = qualified_name(tool.name, namespace), tool.description or ""
    if isinstance(tool, CustomTool):
        place = f"{field}.format.definition"
        return Tool(name, description, free_text=free_text(tool.format), field=place)
    return Tool(name, description, tool.parameters, tool.strict, field=f"{field}.parameters")


def namespaces_of(request: ContextRequest) -> dict[str, str]:
    tools = [tool for tool in request.tools or () if isinstance(tool, NamespaceTool)]
    return {tool.name: tool.description or "" for tool in tools}


def choice_of(request: ContextRequest, offered: OfferedTools) -> ToolChoice:
    """Which of the tools the model may or must call; raises RequestError for a built-in tool that
    is not offered."""
    match request.tool_choice:
        case NamedFunction(name=name, namespace=namespace):
            return ToolChoice.named(qualified_name(name, namespace))
        case NamedBuiltin() as named:
            tool = _builtin(named, offered, "tool_choice.type")
            return ToolChoice("required", frozenset(), frozenset((tool,)))
        case AllowedTools(mode=mode, tools=tools):
            names = frozenset(_allowed(tools, request))
            builtins = {
                _builtin(one, offered, f"tool_choice.tools[{index}].type")
                for index, one in enumerate(tools)
                if isinstance(one, NamedBuiltin)
            }
            return ToolChoice(mode, names, frozenset(builtins))
        case "none" | "required" as mode:
            return ToolChoice(mode)
        case _:
            return ToolChoice()


def _allowed(
    named: Iterable[NamedFunction | NamedNamespace | NamedBuiltin], request: ContextRequest
) -> Iterator[str]:
    """The qualified names in an `allowed_tools`, except built-in tools."""
    for one in named:
        if isinstance(one, NamedFunction):
            yield qualified_name(one.name, one.namespace)
        elif isinstance(one, NamedNamespace):
            inside = [tool.name for tool in tools_of(request) if tool.namespace == one.name]
            yield from inside or [f"{one.name}.*"]  # what is not offered is refused by its name


def _builtin(named: NamedBuiltin, offered: OfferedTools, param: str) -> str:
    tool = BUILTIN_OF[named.type]
    if tool not in offered.tools:
        raise RequestError(
            f"{param} is {named.type!r}, which is not among the tools, or not connected to this "
            f"server (NIM_{tool.upper()}_MCP_URL).",
            param=param,
            code="unknown_tool",
        )
    return tool
