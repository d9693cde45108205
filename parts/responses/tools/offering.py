"""The tools that a response is offered: of its request, and of the items of its conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pydantic import TypeAdapter

from parts.responses.past import Groups
from parts.responses.schemas.request import ContextRequest, ResponseRequest
from parts.responses.schemas.tools import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    McpTool,
    NamedBuiltin,
    NamedFunction,
    NamedMcp,
    NamedNamespace,
    NamedType,
    NamespaceTool,
    ShellTool,
    ToolSearchTool,
)
from parts.responses.schemas.tools import Tool as GivenTool
from parts.responses.tools.typed import MCP, NAMESPACE, TYPED
from service.answer.plan import BUILTIN_OF, OfferedTools, offered_tools
from service.api.common.free_text import free_text
from service.conversation import Tool, qualified_name
from service.errors import RequestError
from service.guide.answer import ToolChoice
from service.roster import Roster
from service.runtime import Runtime
from service.work import in_loop

_ARRIVED: Final = ("tool_search_output", "additional_tools")
_Named = NamedFunction | NamedNamespace | NamedType | NamedMcp | NamedBuiltin
_tools_of_item: Final = TypeAdapter(list[GivenTool]).validate_python


@dataclass(frozen=True, slots=True)
class Offering:
    """What the model is offered."""

    tools: tuple[Tool, ...]  # that the client runs
    namespaces: Mapping[str, str]  # their descriptions
    types: Mapping[str, str]  # of names: the type of tool, NAMESPACE or MCP
    builtins: OfferedTools  # that this server runs


def check_names(request: ContextRequest) -> None:
    """Raise RequestError for a name that two tools of the request have."""
    seen: set[str] = set()
    for param, name in _names(request.tools or ()):
        if name in seen:
            message = f"{param} repeats {name!r}; give each tool its own name."
            raise RequestError(message, param=param)
        seen.add(name)


def _names(tools: Iterable[GivenTool]) -> Iterator[tuple[str, str]]:
    """The qualified name of each client's tool, by the field that has it."""
    for index, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            for place, inner in enumerate(tool.tools):
                name = qualified_name(inner.name, tool.name)
                yield f"tools[{index}].tools[{place}].name", name
        elif isinstance(tool, FunctionTool | CustomTool):
            yield f"tools[{index}].name", tool.name
        elif tool.type in TYPED:
            yield f"tools[{index}].type", tool.type


async def offering_of(request: ContextRequest, groups: Groups, runtime: Runtime) -> Offering:
    """The tools of a request and of its history; raises RequestError for one that cannot be had."""
    collected = _Collected(runtime)
    given = request.tools or ()
    # Nothing is searched here: what a client's search does not find later is offered at once.
    collected.is_searched = any(map(_is_clients_search, given))
    for index, tool in enumerate(given):
        collected.take(tool, f"tools[{index}]")
    collected.is_searched = False
    for group in groups:
        for entry in group:
            if entry.item["type"] in _ARRIVED:
                await in_loop(partial(collected.take_all, entry.item["tools"], entry.param))
    is_hidden = request.tool_choice == "none"
    return Offering(
        () if is_hidden else collected.roster.offered,
        collected.namespaces,
        collected.types,
        offered_tools(
            runtime.toolbox,
            collected.builtins,
            is_hidden=is_hidden,
            max_calls=request.max_tool_calls if isinstance(request, ResponseRequest) else None,
        ),
    )


def _is_clients_search(tool: GivenTool) -> bool:
    return isinstance(tool, ToolSearchTool) and tool.execution == "client"


@dataclass(slots=True)
class _Collected:
    runtime: Runtime
    roster: Roster[Tool] = field(default_factory=Roster)
    namespaces: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    builtins: set[str] = field(default_factory=set)
    is_searched: bool = False  # whether deferred tools wait for the client's search

    def take_all(self, tools: list[Any], param: str) -> None:
        for index, tool in enumerate(_tools_of_item(tools)):
            self.take(tool, f"{param}.tools[{index}]")

    def take(self, tool: GivenTool, param: str) -> None:
        """Offer a tool, or what a namespace holds, from here on."""
        match tool:
            case NamespaceTool():
                self.namespaces[tool.name] = tool.description or ""
                for place, inner in enumerate(tool.tools):
                    self._offer(inner, f"{param}.tools[{place}]", tool.name)
            case FunctionTool() | CustomTool():
                self._offer(tool, param)
            case McpTool():
                self.builtins.add(self._labelled(tool.server_label, f"{param}.server_label"))
            case ToolSearchTool() if not _is_clients_search(tool):
                pass
            case _ if tool.type in TYPED:
                self.roster.offer(_typed(tool))
                self.types[tool.type] = tool.type
            case _ if tool.type in BUILTIN_OF:
                self.builtins.add(BUILTIN_OF[tool.type])

    def _offer(
        self, given: FunctionTool | CustomTool, param: str, namespace: str | None = None
    ) -> None:
        tool = _tool(given, param, namespace)
        self.types.pop(tool.name, None)
        if tool.name != given.name:
            self.types[tool.name] = NAMESPACE
        if given.defer_loading and self.is_searched:
            self.roster.defer(tool)
        else:
            self.roster.offer(tool)

    def _labelled(self, label: str, param: str) -> str:
        """The built-in tool of this label."""
        connected = self.runtime.toolbox.tools if self.runtime.toolbox else frozenset()
        tool = BUILTIN_OF.get(label, label)
        if tool not in connected:
            labels = ", ".join(sorted(connected)) or "none"
            raise RequestError(
                f"{param} is {label[:64]!r}, and the operator has connected no MCP server of that "
                f"label (connected: {labels}); run its tools in the client, or have it connected.",
                param=param,
                code="unknown_tool",
            )
        self.types[tool] = MCP
        return tool


def _tool(tool: FunctionTool | CustomTool, param: str, namespace: str | None) -> Tool:
    name, description = qualified_name(tool.name, namespace), tool.description or ""
    if isinstance(tool, CustomTool):
        place = f"{param}.format.definition"
        return Tool(name, description, free_text=free_text(tool.format), field=place)
    return Tool(name, description, tool.parameters, tool.strict, field=f"{param}.parameters")


def _typed(tool: GivenTool) -> Tool:
    """A tool of a type of its own, as a function; only what its item can hold may be called."""
    known = TYPED[tool.type]
    description, parameters = known.description, known.parameters
    strict: bool | None = True
    if isinstance(tool, ToolSearchTool):
        description, strict = tool.description or description, None
        parameters = known.parameters if tool.parameters is None else tool.parameters
    if isinstance(tool, ShellTool) and tool.environment and tool.environment.skills:
        skills = tool.environment.skills
        lines = [f"- {skill.name}: {skill.description} ({skill.path})" for skill in skills]
        description = "\n".join([description, "Skills, to be read before such a task:", *lines])
    return Tool(tool.type, description, parameters, strict, field=f"the tool {tool.type!r}")


def choice_of(request: ContextRequest, offering: Offering) -> ToolChoice:
    """Which of the tools the model may or must call; raises RequestError for a built-in tool that
    is not offered."""
    match request.tool_choice:
        case NamedFunction(name=name, namespace=namespace):
            return ToolChoice.named(qualified_name(name, namespace))
        case NamedType(type=name):
            return ToolChoice.named(name)
        case NamedBuiltin() | NamedMcp() as named:
            tool = _builtin(named, offering, "tool_choice")
            return ToolChoice("required", frozenset(), frozenset((tool,)))
        case AllowedTools(mode=mode, tools=tools):
            names = frozenset(_allowed(tools, offering))
            builtins = {
                _builtin(one, offering, f"tool_choice.tools[{index}]")
                for index, one in enumerate(tools)
                if isinstance(one, NamedBuiltin | NamedMcp)
            }
            return ToolChoice(mode, names, frozenset(builtins))
        case "none" | "required" as mode:
            return ToolChoice(mode)
        case _:
            return ToolChoice()


def _allowed(named: Iterable[_Named], offering: Offering) -> Iterator[str]:
    """The qualified names in an `allowed_tools`, except built-in tools."""
    for one in named:
        if isinstance(one, NamedFunction):
            yield qualified_name(one.name, one.namespace)
        elif isinstance(one, NamedType):
            yield one.type
        elif isinstance(one, NamedNamespace):
            inside = [tool.name for tool in offering.tools if tool.namespace == one.name]
            yield from inside or [f"{one.name}.*"]  # what is not offered is refused by its name


def _builtin(named: NamedBuiltin | NamedMcp, offering: Offering, place: str) -> str:
    if isinstance(named, NamedMcp):
        given, param = named.server_label, f"{place}.server_label"
    else:
        given, param = named.type, f"{place}.type"
    tool = BUILTIN_OF.get(given, given)
    if tool not in offering.builtins.tools:
        is_known = given in BUILTIN_OF
        setting = f" (NIM_BUILTIN_TOOLS, NIM_{tool.upper()}_MCP_URL)" if is_known else ""
        raise RequestError(
            f"{param} is {given[:64]!r}, which is not among the tools, or not connected to this "
            f"server{setting}.",
            param=param,
            code="unknown_tool",
        )
    return tool
