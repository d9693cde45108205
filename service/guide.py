"""What the client asked of the answer's shape → the structural tag that enforces it.

The tag is xgrammar's structural tag as JSON, which every engine understands. It begins
where generation does, right behind `<|start|>assistant`, and allows an optional analysis
message, an optional preamble before a call, then one call or one final message. It leaves
the closing `<|return|>` to the engine: a finished grammar allows the end of the answer.
Control tokens are named by id; text in the tag can never spell one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from service.errors import RequestError
from service.guide_format import checked_format
from service.guide_schema import enforceable
from service.harmony.types import Tool
from service.harmony.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START

FormatKind = Literal[
    "text", "json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"
]
Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may or must call, and which of the offered tools."""

    mode: Literal["none", "auto", "required"] = "auto"
    names: frozenset[str] | None = None  # None: all that are offered

    @classmethod
    def named(cls, name: str) -> ToolChoice:
        """This one function must be called."""
        return cls("required", frozenset((name,)))


@dataclass(frozen=True, slots=True)
class TextFormat:
    """What the final message may be; `value` is its schema, pattern, texts, grammar or tag."""

    kind: FormatKind = "text"
    value: Any = None


@dataclass(frozen=True, slots=True)
class Fields:
    """What a route calls the fields that errors name."""

    choice: str = "tool_choice"
    format: str = "response_format"
    schema: str = "response_format.json_schema.schema"
    tool_schema: str = "tools[{index}].function.parameters"


CHAT_FIELDS = Fields()
AUTO = ToolChoice()
TEXT = TextFormat()


def structural_tag(
    tools: Sequence[Tool],
    choice: ToolChoice = AUTO,
    format: TextFormat = TEXT,
    *,
    max_reasoning_tokens: int | None = None,
    builtins: Iterable[str] = (),
    fields: Fields = CHAT_FIELDS,
) -> str | None:
    """The tag as JSON, or None when nothing is to be enforced.

    `builtins` are the recipients of tools that the server runs: they may be called wherever a
    choice does not name others. A turn ends at its first call, so `parallel_tool_calls` needs
    nothing here. Raises RequestError naming the field: a choice of a tool that is not offered,
    or a schema that cannot be enforced.
    """
    hosted = sorted(builtins) if choice.mode != "none" and choice.names is None else []
    callable_tools = _callable(tools, choice, fields, has_others=bool(hosted))
    is_guided = (
        choice.mode == "required"
        or (choice.mode == "auto" and choice.names is not None and bool(tools))
        or format.kind != "text"
        or any(tool.strict or _is_patterned(tool) for tool in callable_tools)
        or max_reasoning_tokens is not None
    )
    if not is_guided:
        return None
    is_forced = choice.mode == "required"
    turns = [
        _call(tool, is_forced, i, fields) for i, tool in enumerate(tools) if tool in callable_tools
    ]
    turns += [_builtin_call(recipient) for recipient in hosted]
    turns = [_sequence(_optional(_message("commentary", _TEXT)), _either(turns))] if turns else []
    if not is_forced:
        turns.append(_final(format, fields))
    analysis = _message("analysis", _text(max_reasoning_tokens))
    tag = {"type": "structural_tag", "format": _sequence(_optional(analysis), _either(turns))}
    return json.dumps(tag, ensure_ascii=False, separators=(",", ":"))


def _callable(
    tools: Sequence[Tool], choice: ToolChoice, fields: Fields, *, has_others: bool
) -> list[Tool]:
    """The tools that may be called."""
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


# Harmony's turns. The model spells a call in several ways; all are allowed.


def _is_patterned(tool: Tool) -> bool:
    text = tool.free_text
    return text is not None and (text.pattern is not None or text.ebnf is not None)


def _call(tool: Tool, is_forced: bool, index: int, fields: Fields) -> Node:
    to = f" to=functions.{tool.name}"
    return _sequence(
        _either(
            [
                _sequence(_string(to), _token(CHANNEL), _string("commentary")),
                _sequence(_token(CHANNEL), _string("commentary" + to)),
            ]
        ),
        *_input(tool, is_forced, fields.tool_schema.format(index=index)),
        _token(CALL),
    )


def _input(tool: Tool, is_forced: bool, field: str) -> list[Node]:
    """A call's type and text."""
    text = tool.free_text
    if text is None:
        return [_JSON_TYPE, _token(MESSAGE), _json(_arguments(tool, is_forced, field))]
    content = _TEXT
    if text.pattern is not None:
        content = {"type": "regex", "pattern": text.pattern}
    elif text.ebnf is not None:
        content = {"type": "grammar", "grammar": text.ebnf}
    return [_either([_string(""), _string(" code")]), _token(MESSAGE), content]


def _builtin_call(recipient: str) -> Node:
    to = f" to={recipient}"
    channel = _either([_string("analysis"), _string("commentary")])
    return _sequence(
        _either(
            [
                _sequence(_string(to), _token(CHANNEL), channel),
                _sequence(_token(CHANNEL), channel, _string(to)),
            ]
        ),
        _either([_string(" code"), *_JSON_TYPES]),
        _token(MESSAGE),
        _TEXT if recipient == "python" else _json({"type": "object"}),
        _token(CALL),
    )


def _arguments(tool: Tool, is_forced: bool, field: str) -> Any:
    """The schema of a call's arguments: the tool's, unless nobody asked for it to be enforced."""
    is_enforced = tool.strict or (is_forced and tool.strict is None)
    if not is_enforced or not tool.parameters:
        return {"type": "object"}
    return enforceable(tool.parameters, field)


def _final(format: TextFormat, fields: Fields) -> Node:
    if format.kind == "text":
        return _sequence(_token(CHANNEL), _string("final"), _token(MESSAGE), _TEXT)
    return _sequence(
        _token(CHANNEL),
        _string("final"),
        _JSON_TYPE if format.kind in ("json_object", "json_schema") else _optional(_JSON_TYPE),
        _token(MESSAGE),
        _content(format, fields),
    )


def _content(format: TextFormat, fields: Fields) -> Node:
    match format.kind:
        case "json_object":
            return _json({"type": "object"})
        case "json_schema":
            return _json(enforceable(format.value, fields.schema))
        case "regex":
            return {"type": "regex", "pattern": format.value}
        case "choice":
            return _either([_string(text) for text in format.value])
        case "grammar":
            return {"type": "grammar", "grammar": format.value}
        case _:
            return checked_format(format.value, fields.format)


def _message(channel: str, content: Node) -> Node:
    """A message that another one follows."""
    return _sequence(
        _token(CHANNEL),
        _string(channel),
        _token(MESSAGE),
        content,
        _token(END),
        _token(START),
        _string("assistant"),
    )


# Nodes of the tag.


def _sequence(*elements: Node) -> Node:
    return {"type": "sequence", "elements": list(elements)}


def _either(elements: list[Node]) -> Node:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}


def _optional(content: Node) -> Node:
    return {"type": "optional", "content": content}


def _string(value: str) -> Node:
    return {"type": "const_string", "value": value}


def _token(token_id: int) -> Node:
    return {"type": "token", "token": token_id}


def _text(max_tokens: int | None) -> Node:
    return _TEXT if max_tokens is None else {**_TEXT, "max_tokens": max_tokens}


def _json(schema: Any) -> Node:
    # Without a bound a model may write blanks until its limit.
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _MAX_BLANKS}


_MAX_BLANKS = 40  # a line break and ten levels of indentation by four
_TEXT: Node = {"type": "any_text"}
_JSON_TYPES = [
    _string(""),
    _string(" json"),
    _sequence(_string(" "), _token(CONSTRAIN), _string("json")),
    _sequence(_token(CONSTRAIN), _string("json")),
]
_JSON_TYPE = _either(_JSON_TYPES)
