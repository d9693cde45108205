"""The tools of a request for a response, and which of them the model may or must call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from service.answer.plan import BUILTIN_OF
from service.api.common.schema import InputFormat, OfferedModel, RequestModel

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
NamespaceName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]


class FunctionTool(OfferedModel):
    """A function that the client runs."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema.")
    strict: bool | None = Field(None, description="`true`: arguments always follow the schema.")
    output_schema: dict[str, Any] | None = Field(None, description="Accepted without effect.")
    allowed_callers: list[Literal["direct"]] | None = Field(None, description='`["direct"]`.')
    defer_loading: bool | None = Field(
        None, description="Accepted without effect: all tools are shown to the model at once."
    )


class CustomTool(OfferedModel):
    """A tool that the client runs on free text."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: InputFormat | None = Field(None, description="What the text must be.")
    allowed_callers: list[Literal["direct"]] | None = Field(None, description='`["direct"]`.')
    defer_loading: bool | None = Field(
        None, description="Accepted without effect: all tools are shown to the model at once."
    )


class NamespaceTool(OfferedModel):
    """Tools that the client runs, under a name that their calls repeat as `namespace`."""

    type: Literal["namespace"]
    name: NamespaceName
    description: str | None = None
    tools: list[Annotated[FunctionTool | CustomTool, Field(discriminator="type")]] = Field(
        min_length=1, max_length=128
    )


class HostedTool(RequestModel):
    """A tool of OpenAI's own: offered to the model where the operator connected one like it."""

    model_config = ConfigDict(extra="allow")

    type: str


def _type_of(value: Any) -> Any:
    """The type of the value, or of the model it was parsed into."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


_CLIENTS_TOOLS = ("function", "custom", "namespace")


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
    if kind in ("custom", "namespace"):
        return str(kind)
    return "hosted" if isinstance(kind, str) and kind in HOSTED_TOOLS else "function"


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
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
            | Annotated[NamedBuiltin, Tag("builtin")],
            Discriminator(lambda value: _named_tag(value)),
        ]
    ] = Field(min_length=1, max_length=128)


def _named_tag(value: Any) -> str:
    kind = _type_of(value)
    return "namespace" if kind == "namespace" else "builtin" if kind in BUILTIN_OF else "function"


def _check_choice(value: Any) -> Any:
    kind = _type_of(value)
    known = ("function", "custom", "allowed_tools", *BUILTIN_OF)
    if isinstance(kind, str) and kind not in known:
        raise PydanticCustomError(
            "unsupported_value",
            "a choice of type {kind} is not supported; choose a function, `web_search` or "
            "`code_interpreter`",
            {"kind": repr(kind[:64])},
        )
    return value


def _choice_tag(value: Any) -> str:
    if isinstance(value, str):
        return "mode"
    kind = _type_of(value)
    if kind in BUILTIN_OF:
        return "builtin"
    return "allowed_tools" if kind == "allowed_tools" else "function"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[NamedBuiltin, Tag("builtin")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(_choice_tag),
    BeforeValidator(_check_choice),
]
