"""What the client asked of the answer's shape → the grammar that enforces it.

It begins where generation does, and allows reasoning, then one call or one final message, in the
words of the model's format. The end token is the engine's: a finished grammar allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar
from typing import Literal as OneOf

from engines.grammar.tree import Gbnf, Grammar, JsonSchema, Lark, Literal, Regex, Text, either
from service.chat_format import ChatFormat
from service.conversation import Tool
from service.errors import RequestError
from service.guide.format import format_grammar
from service.guide.schema import schema_grammar
from service.guide.widening import Widening
from service.work import Budget, OverBudget, in_thread

FormatKind = OneOf[
    "text", "json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"
]

R = TypeVar("R")

MAX_STEPS: Final = 20_000  # of all schemas of a request; each is one to a few microseconds
_FEW_STEPS: Final = 300  # about a millisecond


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may or must call, and which of the offered tools."""

    mode: OneOf["none", "auto", "required"] = "auto"
    names: frozenset[str] | None = None  # None: all that are offered, built-in tools too
    builtins: frozenset[str] = frozenset()  # beside `names`, the built-in tools

    @classmethod
    def named(cls, name: str) -> ToolChoice:
        """The choice by which this one function must be called."""
        return cls("required", frozenset((name,)))


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What the final message may be; `value` is its schema, pattern, texts, grammar or tag."""

    kind: FormatKind = "text"
    value: Any = None
    widens: bool = False  # what cannot be enforced of a schema is left out of it


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of a route's fields, for errors."""

    choice: str = "tool_choice"
    format: str = "response_format"
    schema: str = "response_format.json_schema.schema"


CHAT_FIELDS = FieldNames()
AUTO = ToolChoice()
TEXT = AnswerFormat()


@dataclass(frozen=True, slots=True)
class _SchemaReader:
    """Reads the schemas of a request."""

    budget: Budget | None
    widening: Widening

    def read(self, schema: Any, field: str, *, widens: bool) -> JsonSchema:
        return schema_grammar(schema, field, self.budget, self.widening if widens else None)


def answer_grammar(
    chat_format: ChatFormat,
    tools: Sequence[Tool],
    choice: ToolChoice = AUTO,
    format: AnswerFormat = TEXT,
    *,
    max_reasoning_tokens: int | None = None,
    builtins: Iterable[str] = (),
    fields: FieldNames = CHAT_FIELDS,
    budget: Budget | None = None,
    widening: Widening | None = None,
) -> Grammar | None:
    """The grammar of an answer, or None when nothing is to be enforced.

    `builtins` are the tools that the server runs: they may be called where a choice names them, or
    none. A turn ends at its first call, so `parallel_tool_calls` needs
    nothing here.

    `widening` has what was left out of schemas that need not be enforced as a whole: those of tools
    that are not strict, and of a format that widens.

    Raises RequestError naming the field: a choice of a tool that is not offered, or a schema that
    cannot be enforced. Raises OverBudget when reading the schemas takes more steps than the budget
    has.
    """
    offered = sorted(builtins) if choice.mode != "none" else []
    hosted = [tool for tool in offered if choice.names is None or tool in choice.builtins]
    callable_tools = _callable(tools, choice, fields, has_others=bool(hosted))
    is_guided = (
        choice.mode == "required"
        or (choice.mode == "auto" and choice.names is not None and bool(tools or offered))
        or format.kind != "text"
        or any(tool.strict or _is_patterned(tool) for tool in callable_tools)
        or max_reasoning_tokens is not None
    )
    if not is_guided:
        return None
    is_forced = choice.mode == "required"
    reader = _SchemaReader(budget, widening or Widening())
    calls = [_call(chat_format, tool, is_forced, reader) for tool in callable_tools]
    calls += map(chat_format.builtin_call_grammar, hosted)
    content = text_grammar(format, fields, budget, widening) if not is_forced else None
    final = None if is_forced else chat_format.final_grammar(content)
    return chat_format.answer_grammar(calls, final, max_reasoning_tokens)


def open_grammar(
    chat_format: ChatFormat,
    tools: Iterable[str],
    free_text: Collection[str] = (),
    builtins: Iterable[str] = (),
) -> Grammar:
    """The grammar of an answer of which nothing is to be enforced but its form.

    `free_text`: of the tools, those that take text instead of JSON.
    """
    calls = []
    for name in sorted(tools):
        is_text = name in free_text
        content = Text() if is_text else _ANY_OBJECT
        calls.append(chat_format.call_grammar(name, content, is_free_text=is_text))
    calls += map(chat_format.builtin_call_grammar, sorted(builtins))
    return chat_format.answer_grammar(calls, chat_format.final_grammar(None), None)


def text_grammar(
    format: AnswerFormat,
    fields: FieldNames,
    budget: Budget | None,
    widening: Widening | None = None,
) -> Grammar | None:
    """The grammar of an answer in raw text, or None where it is free; raises as answer_grammar."""
    reader = _SchemaReader(budget, widening or Widening())
    return None if format.kind == "text" else _content(format, fields, reader)


def _callable(
    tools: Sequence[Tool], choice: ToolChoice, fields: FieldNames, *, has_others: bool
) -> list[Tool]:
    if choice.mode == "none":
        return []
    offered = {tool.name for tool in tools}
    missing = sorted((choice.names or frozenset()) - offered)
    if missing:
        known = ", ".join(sorted(offered)) or "none is offered"
        raise RequestError(
            f"{fields.choice} names {missing[0]!r}, which is not among the tools ({known}).",
            param=fields.choice,
            code="unknown_tool",
        )
    chosen = [tool for tool in tools if choice.names is None or tool.name in choice.names]
    if choice.mode == "required" and not chosen and not has_others:
        raise RequestError(
            f"{fields.choice} asks for a call, but there is no tool to call; send tools.",
            param=fields.choice,
        )
    return chosen


def _is_patterned(tool: Tool) -> bool:
    text = tool.free_text
    return text is not None and (text.pattern is not None or text.lark is not None)


def _call(format: ChatFormat, tool: Tool, is_forced: bool, reader: _SchemaReader) -> Grammar:
    text, content = tool.free_text, _arguments(tool, is_forced, reader)
    if text is not None:
        content = Text()
        if text.pattern is not None:
            content = Regex(text.pattern, tool.field)
        elif text.lark is not None:
            content = Lark(text.lark, tool.field)
    return format.call_grammar(tool.name, content, is_free_text=text is not None)


def _arguments(tool: Tool, is_forced: bool, reader: _SchemaReader) -> Grammar:
    """A call's arguments: of the tool's schema, if that was asked for."""
    is_enforced = tool.strict or (is_forced and tool.strict is None)
    if not is_enforced or not tool.parameters:
        return _ANY_OBJECT
    read = reader.read(tool.parameters, tool.field, widens=not tool.strict)
    return _ANY_OBJECT if read.schema == "{}" else read


def _content(format: AnswerFormat, fields: FieldNames, reader: _SchemaReader) -> Grammar:
    match format.kind:
        case "json_object":
            return _ANY_OBJECT
        case "json_schema":
            return reader.read(format.value, fields.schema, widens=format.widens)
        case "regex":
            return Regex(format.value, fields.format)
        case "choice":
            if reader.budget is not None:
                reader.budget.spend(len(format.value))
            return either([Literal(text) for text in format.value])
        case "grammar":
            return Gbnf(format.value, fields.format)
        case _:
            return format_grammar(format.value, fields.format, reader.budget)


_ANY_OBJECT: Final = JsonSchema('{"type":"object"}')


async def read_in_turns(read: Callable[[Budget], R], param: str) -> R:
    """Read schemas here when that takes few steps, else in a thread that takes turns.

    Raises what `read` raises, and RequestError naming the parameter for what takes too many steps.
    """
    with suppress(OverBudget):
        return read(Budget(_FEW_STEPS, "steps"))
    try:
        return await in_thread(partial(read, Budget(MAX_STEPS, "steps")))
    except OverBudget as error:
        raise RequestError(
            f"{param} cannot be enforced: reading all schemas together takes more than "
            f"{error.limit} steps; send fewer, or smaller ones.",
            param=param,
            code="invalid_schema",
        ) from None
