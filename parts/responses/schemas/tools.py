"""The tools of a request for a response, and which of them the model may or must call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from service.answer.plan import BUILTIN_OF
from service.api.common.free_text import InputFormat
from service.api.common.schema import OfferedModel, Refused, RequestModel, refusing

# Tools that OpenAI runs itself. Clients send them unasked: one that is not connected is accepted
# and not offered, which leaves the answer to the model alone.
HOSTED_TOOLS = frozenset(
    {
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)

FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
NamespaceName = FunctionName
_DEFERRED = (
    "`true`: beside a `tool_search` that the client runs, offered once a search has found it."
)
Callers = Annotated[list[Literal["direct"]] | None, Field(description='`["direct"]`.')]


class FunctionTool(OfferedModel):
    """A function that the client runs."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema.")
    strict: bool | None = Field(None, description="`true`: arguments always follow the schema.")
    output_schema: dict[str, Any] | None = Field(None, description="Accepted without effect.")
    allowed_callers: Callers = None
    defer_loading: bool | None = Field(None, description=_DEFERRED)


class CustomTool(OfferedModel):
    """A tool that the client runs on free text."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: InputFormat | None = Field(None, description="What the text must be.")
    allowed_callers: Callers = None
    defer_loading: bool | None = Field(None, description=_DEFERRED)


class NamespaceTool(OfferedModel):
    """Tools that the client runs, under a name that their calls repeat as `namespace`."""

    type: Literal["namespace"]
    name: NamespaceName
    description: str | None = None
    tools: list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]] = Field(
        min_length=1, max_length=128
    )


class Skill(RequestModel):
    """Instructions in a folder of the client's machine."""

    name: str
    description: str
    path: str


class LocalEnvironment(RequestModel):
    """The client's own machine."""

    type: Literal["local"]
    skills: list[Skill] | None = Field(None, max_length=200, description="The model reads them.")


class ShellTool(OfferedModel):
    """Shell commands that the client runs: calls are `shell_call`."""

    type: Literal["shell"]
    environment: LocalEnvironment | None = None
    allowed_callers: Callers = None


class LocalShellTool(OfferedModel):
    """A command that the client runs: calls are `local_shell_call`."""

    type: Literal["local_shell"]


class ApplyPatchTool(OfferedModel):
    """Changes of files that the client makes: calls are `apply_patch_call`."""

    type: Literal["apply_patch"]
    allowed_callers: Callers = None


class ToolSearchTool(OfferedModel):
    """A search for tools: calls of one that the client runs are `tool_search_call`."""

    type: Literal["tool_search"]
    execution: Literal["server", "client"] | None = Field(
        None, description="`server`, the default: nothing is searched, all tools are offered."
    )
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema.")


_OPERATORS = "the operator connects servers; name one by its label alone"
_MCP_REFUSED = {
    "allowed_tools": "all tools of a connected server are offered; leave it out",
    "authorization": _OPERATORS,
    "connector_id": _OPERATORS,
    "headers": _OPERATORS,
    "server_url": _OPERATORS,
    "tunnel_id": _OPERATORS,
}


class McpTool(OfferedModel):
    """A built-in tool that the operator connected, by its name: `browser` or `python`."""

    type: Literal["mcp"]
    server_label: str
    server_description: str | None = Field(None, description="Accepted without effect.")
    require_approval: Literal["never"] | None = None
    allowed_callers: Callers = None
    defer_loading: bool | None = Field(None, description="Accepted without effect.")

    allowed_tools: Refused = None
    authorization: Refused = None
    connector_id: Refused = None
    headers: Refused = None
    server_url: Refused = None
    tunnel_id: Refused = None

    _refuse = refusing(_MCP_REFUSED)


class HostedTool(RequestModel):
    """A tool of OpenAI's own: offered to the model where the operator connected one like it."""

    model_config = ConfigDict(extra="allow")

    type: str


def _type_of(value: Any) -> Any:
    """The type of the value, or of the model it was parsed into."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


TYPES = ("shell", "local_shell", "apply_patch", "tool_search")  # of tools that have one name
_CLIENTS_TOOLS = ("function", "custom", "namespace", "mcp", *TYPES)


def _check_tool(value: Any) -> Any:
    kind = _type_of(value)
    if isinstance(kind, str) and kind not in HOSTED_TOOLS and kind not in _CLIENTS_TOOLS:
        raise PydanticCustomError(
            "unsupported_value",
            "tools of type {kind} are not supported; offer a function that does the same",
            {"kind": repr(kind[:64])},
        )
    return value


def _tool_tag(value: Any) -> str:
    kind = _type_of(value)
    if kind in _CLIENTS_TOOLS:
        return str(kind)
    return "hosted" if isinstance(kind, str) and kind in HOSTED_TOOLS else "function"


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[ShellTool, Tag("shell")]
    | Annotated[LocalShellTool, Tag("local_shell")]
    | Annotated[ApplyPatchTool, Tag("apply_patch")]
    | Annotated[ToolSearchTool, Tag("tool_search")]
    | Annotated[McpTool, Tag("mcp")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_tool_tag),
    BeforeValidator(_check_tool),
]


class NamedFunction(RequestModel):
    """A function or a custom tool."""

    type: Literal["function", "custom"]
    name: FunctionName
    namespace: NamespaceName | None = None


class NamedNamespace(RequestModel):
    """All tools of a namespace."""

    type: Literal["namespace"]
    name: NamespaceName


class NamedType(RequestModel):
    """A tool that the client runs and the API knows by its type."""

    type: Literal["shell", "local_shell", "apply_patch", "tool_search"]


class NamedMcp(RequestModel):
    """A built-in tool that the operator connected, by its label."""

    type: Literal["mcp"]
    server_label: str
    name: Refused = None

    _refuse = refusing({"name": "all tools of a connected server may be called; leave it out"})


class NamedBuiltin(RequestModel):
    """A built-in tool that the operator connected."""

    type: Literal[
        "code_interpreter",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    ]


class AllowedTools(RequestModel):
    """Only these of the offered tools may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[
        Annotated[
            Annotated[NamedFunction, Tag("function")]
            | Annotated[NamedNamespace, Tag("namespace")]
            | Annotated[NamedType, Tag("type")]
            | Annotated[NamedMcp, Tag("mcp")]
            | Annotated[NamedBuiltin, Tag("builtin")],
            Discriminator(lambda value: _named_tag(value)),
        ]
    ] = Field(min_length=1, max_length=128)


def _named_tag(value: Any) -> str:
    kind = _type_of(value)
    if kind in ("namespace", "mcp", "allowed_tools"):
        return str(kind)
    return "builtin" if kind in BUILTIN_OF else "type" if kind in TYPES else "function"


def _check_choice(value: Any) -> Any:
    kind = _type_of(value)
    known = ("function", "custom", "allowed_tools", "mcp", *TYPES, *BUILTIN_OF)
    if isinstance(kind, str) and kind not in known:
        raise PydanticCustomError(
            "unsupported_value",
            "a choice of type {kind} is not supported; choose a function, or the type of an "
            "offered tool",
            {"kind": repr(kind[:64])},
        )
    return value


def _choice_tag(value: Any) -> str:
    return "mode" if isinstance(value, str) else _named_tag(value)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[NamedType, Tag("type")]
    | Annotated[NamedMcp, Tag("mcp")]
    | Annotated[NamedBuiltin, Tag("builtin")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(_choice_tag),
    BeforeValidator(_check_choice),
]
