"""A chat request's tool_choice, formats and tools → the grammar of its answer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from engines.grammar.tree import Grammar
from service.answer.hosted import Hosted, Offer
from service.api.chat.schema import ChatRequest
from service.api.common.guidance import (
    AllowedToolsChoice,
    Choice,
    JSONObjectFormat,
    JSONSchemaFormat,
    NamedCustomTool,
    NamedTool,
    ResponseFormat,
    StructuralTagFormat,
    StructuredOutputs,
)
from service.budget import Budget
from service.errors import RequestError
from service.guide.answer import (
    CHAT_FIELDS,
    TEXT,
    Fields,
    TextFormat,
    ToolChoice,
    answer_grammar,
)
from service.guide.reading import read_in_turns
from service.harmony.types import ResponseFormat as ResponseFormatNote
from service.harmony.types import Tool


@dataclass(frozen=True, slots=True)
class ChatGrammar:
    """What the answer may be, if something is asked of it, and the field that asked."""

    tree: Grammar | None
    param: str | None
    hosted: Hosted | None  # how built-in tools are run beside it


async def chat_grammar(request: ChatRequest, tools: tuple[Tool, ...], offer: Offer) -> ChatGrammar:
    """The grammar of a request; raises RequestError naming the field that cannot be enforced."""
    param = "tools" if tools else _format(request)[1].schema
    return await read_in_turns(functools.partial(_read, request, tools, offer), param)


def _read(
    request: ChatRequest, tools: tuple[Tool, ...], offer: Offer, budget: Budget
) -> ChatGrammar:
    format, fields = _format(request)
    choice = to_tool_choice(request.tool_choice)
    grammar_of = functools.partial(
        answer_grammar,
        tools,
        format=format,
        max_reasoning_tokens=request.thinking_token_budget,
        builtins=offer.recipients,
        fields=fields,
        budget=budget,
    )
    tree = grammar_of(choice)
    param = fields.format if format.kind != "text" else "tools"
    hosted = offer.hosted(choice, grammar_of, is_shown=False)
    return ChatGrammar(tree, param if tree else None, hosted)


def to_tool_choice(choice: Choice | None) -> ToolChoice:
    match choice:
        case None:
            return ToolChoice()
        case NamedTool() | NamedCustomTool():
            return ToolChoice.named(choice.function.name)
        case AllowedToolsChoice():
            allowed = choice.allowed_tools
            return ToolChoice(allowed.mode, frozenset(tool.function.name for tool in allowed.tools))
        case _:
            return ToolChoice(choice)


def _format(request: ChatRequest) -> tuple[TextFormat, Fields]:
    if request.structured_outputs is None:
        return to_text_format(request.response_format), CHAT_FIELDS
    if request.response_format is not None and request.response_format.type != "text":
        raise RequestError(
            "response_format and structured_outputs both say what the answer must be; give one.",
            param="structured_outputs",
        )
    format, field = _structured(request.structured_outputs)
    place = f"structured_outputs.{field}"
    return format, replace(CHAT_FIELDS, format=place, schema=place)


def to_text_format(format: ResponseFormat | None) -> TextFormat:
    match format:
        case JSONObjectFormat():
            return TextFormat("json_object")
        case JSONSchemaFormat():
            return TextFormat("json_schema", format.json_schema.schema_)
        case StructuralTagFormat():
            return TextFormat("structural_tag", format.format)
        case _:
            return TEXT


def described_format(request: ChatRequest) -> ResponseFormatNote | None:
    """The schema of the answer, as the prompt tells the model."""
    outputs, format = request.structured_outputs, request.response_format
    if outputs is not None and outputs.json_ is not None:
        return ResponseFormatNote(outputs.json_)
    if not isinstance(format, JSONSchemaFormat):
        return None
    given = format.json_schema
    return ResponseFormatNote(given.schema_, given.name, given.description or "")


def _structured(outputs: StructuredOutputs) -> tuple[TextFormat, str]:
    """The one that was given, and its name."""
    if outputs.json_ is not None:
        return TextFormat("json_schema", outputs.json_), "json"
    if outputs.regex is not None:
        return TextFormat("regex", outputs.regex), "regex"
    if outputs.choice is not None:
        return TextFormat("choice", tuple(outputs.choice)), "choice"
    if outputs.grammar is not None:
        return TextFormat("grammar", outputs.grammar), "grammar"
    if outputs.structural_tag is not None:
        return TextFormat("structural_tag", outputs.structural_tag.format), "structural_tag"
    return TextFormat("json_object"), "json_object"
