"""Judge what a model wrote against what the dialogue wanted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema

from service.conversation import Delta, DeltaKind, Tool
from service.harmony.parse import Parser
from tools.nano.dialogues import Turn
from tools.nano.tokens import decode


@dataclass(frozen=True, slots=True)
class Written:
    """A reply, parsed as the service parses it."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]  # name and arguments
    is_clean: bool  # the parser repaired nothing and the reply ended by itself


def parse(turn: Turn, token_ids: Sequence[int], is_stopped: bool) -> Written:
    """Parse the ids generated for a turn."""
    parser = Parser(frozenset(tool.name for tool in turn.prompt.tools))
    deltas = [*parser.feed(token_ids), *parser.finish()]
    calls = [delta.name for delta in deltas if delta.kind is DeltaKind.TOOL_CALL]
    arguments = ["".join(_texts(deltas, DeltaKind.ARGUMENTS, index)) for index in range(len(calls))]
    return Written(
        reasoning="".join(_texts(deltas, DeltaKind.REASONING)),
        content="".join(_texts(deltas, DeltaKind.CONTENT)),
        calls=tuple(zip(calls, arguments, strict=True)),
        is_clean=is_stopped and parser.num_resyncs == 0,
    )


def _texts(deltas: list[Delta], kind: DeltaKind, index: int = 0) -> list[str]:
    return [delta.text for delta in deltas if delta.kind is kind and delta.call_index == index]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which demands a reply meets; None where it was not demanded."""

    kind: str
    effort: str
    num_reasoning_words: int
    is_valid: bool  # reasoning, then one call with an object of arguments or one answer
    is_right_tool: bool | None = None  # and arguments that fit its schema
    is_exact: bool | None = None  # arguments as the user gave them
    is_said: bool | None = None  # the answer holds what it must


def judge(turn: Turn, token_ids: Sequence[int], is_stopped: bool) -> Verdict:
    """Judge the ids generated for a turn."""
    written = parse(turn, token_ids, is_stopped)
    arguments = _arguments(written)
    has_one_end = (arguments is not None) != bool(written.content)
    is_right = is_exact = is_said = None
    if turn.request:
        is_right = arguments is not None and written.calls[0][0] == turn.request.tool
        is_right = is_right and _fits(arguments, turn.prompt.tools, turn.request.tool)
        is_exact = is_right and arguments == turn.request.arguments
    else:
        is_said = not written.calls and all(text in written.content for text in turn.must_say)
    return Verdict(
        kind=turn.kind,
        effort=turn.prompt.reasoning_effort or "medium",
        num_reasoning_words=len(written.reasoning.split()),
        is_valid=written.is_clean and bool(written.reasoning) and has_one_end,
        is_right_tool=is_right,
        is_exact=is_exact,
        is_said=is_said,
    )


def _arguments(written: Written) -> dict[str, Any] | None:
    if len(written.calls) != 1:
        return None
    try:
        value = json.loads(written.calls[0][1])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _fits(arguments: Any, tools: Sequence[Tool], name: str) -> bool:
    schema = next(tool.parameters for tool in tools if tool.name == name)
    strict = {**(schema or {"type": "object", "properties": {}}), "additionalProperties": False}
    return bool(jsonschema.Draft202012Validator(strict).is_valid(arguments))


def describe(turn: Turn, token_ids: Sequence[int]) -> str:
    """Return a line for a log of failures."""
    said = turn.prompt.messages[-1].content
    return f"{turn.kind}: {said!r}\n  wrote  {decode(token_ids)!r}\n  wanted {decode(turn.reply)!r}"
