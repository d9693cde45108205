"""The names that OpenAI's and Anthropic's packages publish: parameters, types and beta names."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)

from typing_extensions import get_type_hints, is_typeddict

_RESPONSES: Final = "openai.types.responses"
_BETA: Final = "anthropic.types.beta"


class Published(NamedTuple):
    """Where a package has a union of objects that a `type` tells apart."""

    label: str  # of its row in docs/api.md
    module: str
    name: str
    field: str = ""  # of a TypedDict, whose value the union is


TYPES: Final = (
    Published(
        "chat content parts",
        "openai.types.chat.chat_completion_content_part_param",
        "ChatCompletionContentPartParam",
    ),
    Published(
        "chat tools",
        "openai.types.chat.chat_completion_tool_union_param",
        "ChatCompletionToolUnionParam",
    ),
    Published(
        "responses items", f"{_RESPONSES}.response_input_item_param", "ResponseInputItemParam"
    ),
    Published("responses tools", f"{_RESPONSES}.tool_param", "ToolParam"),
    Published(
        "responses tool choices",
        f"{_RESPONSES}.response_create_params",
        "ResponseCreateParamsBase",
        "tool_choice",
    ),
    Published(
        "responses content parts",
        f"{_RESPONSES}.response_input_message_content_list_param",
        "ResponseInputContentParam",
    ),
    Published("messages blocks", f"{_BETA}.beta_content_block_param", "BetaContentBlockParam"),
    Published("messages tools", f"{_BETA}.beta_tool_union_param", "BetaToolUnionParam"),
    Published(
        "messages edits",
        f"{_BETA}.beta_context_management_config_param",
        "BetaContextManagementConfigParam",
        "edits",
    ),
)
PARAMETERS: Final = (
    ("chat", "openai.types.chat.completion_create_params", "CompletionCreateParamsBase"),
    ("completions", "openai.types.completion_create_params", "CompletionCreateParamsBase"),
    ("responses", f"{_RESPONSES}.response_create_params", "ResponseCreateParamsBase"),
    ("messages", f"{_BETA}.message_create_params", "MessageCreateParamsBase"),
)


def parameters(module: str, name: str) -> set[str]:
    """The parameters of a request."""
    return set(get_type_hints(getattr(import_module(module), name)))


OPTIONS: Final = ("thinking", "output_config", "tool_choice")


def message_options(parameter: str) -> Iterator[dict[str, Any]]:
    """For each field of the objects that a parameter of messages takes, one with each of its named
    values, or with one of its type."""
    _, module, name = PARAMETERS[-1]
    hints = get_type_hints(getattr(import_module(module), name), include_extras=True)
    for member in _members(hints[parameter]):
        least = _least(member)
        for field, kind in get_type_hints(member).items():
            yield from ({**least, field: value} for value in _values(kind))


def _least(member: Any) -> dict[str, Any]:
    """An object with what is required alone."""
    fields: dict[str, Any] = get_type_hints(member, include_extras=True)
    return {n: next(_values(f)) for n, f in fields.items() if _is_required(f)}


def _is_required(hint: object) -> bool:
    origin: object = get_origin(hint)
    return origin is Required


def _values(kind: Any) -> Iterator[Any]:
    """Values of a type: all that have names, or one."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif get_origin(kind) in (Annotated, Required, NotRequired):
        yield from _values(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        yield from _values(next(each for each in get_args(kind) if each is not type(None)))
    elif is_typeddict(kind):
        yield _least(kind)
    else:
        yield {int: 2048, bool: True, str: "x"}.get(kind, {"type": "object"})


def type_names(published: Published) -> set[str]:
    """The values that `type` has in the members of a union."""
    found = getattr(import_module(published.module), published.name)
    if published.field:
        found = get_type_hints(found, include_extras=True)[published.field]
    return {name for member in _members(found) for name in _types(member)}


def beta_names() -> set[str]:
    """Anthropic's names of betas, without those of its other products' administration."""
    return set(_literals(import_module("anthropic.types").AnthropicBetaParam))


def _members(union: Any) -> Iterator[Any]:
    """The TypedDicts of a union, of lists of it, and of what they are wrapped in."""
    if is_typeddict(union):
        yield union
    elif get_origin(union) in (Annotated, Required, NotRequired):
        yield from _members(get_args(union)[0])
    elif get_origin(union) not in (None, Literal):
        for part in get_args(union):
            yield from _members(part)


def _types(member: Any) -> tuple[str, ...]:
    kind = get_type_hints(member).get("type")
    return get_args(kind) if get_origin(kind) is Literal else ()


def _literals(union: Any) -> Iterator[str]:
    if get_origin(union) is Literal:
        yield from get_args(union)
    elif get_origin(union) in (Union, UnionType):
        for part in get_args(union):
            yield from _literals(part)
