"""The ids of what nano should write: reasoning, then a call or an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from service.conversation import ReasoningEffort
from tools.nano.about import think
from tools.nano.spelling import copied, copy_of
from tools.nano.tokens import ASSISTANT, CALL, CHANNEL, END, MESSAGE, RETURN, SPACE, START, encode
from tools.nano.values import Value


def answer(analysis: list[int], final: list[int]) -> list[int]:
    """Return the ids of a reply that reasons and answers."""
    return [*_reason(analysis), CHANNEL, *encode("final"), MESSAGE, *final, RETURN]


def call(
    name: str, arguments: Mapping[str, Value], said: str, effort: ReasoningEffort
) -> list[int]:
    """Return the ids of a reply that reasons and calls a tool, copying from what the user said."""
    header = [*encode(" to=functions"), *encode("."), *copy_of(encode(" " + name)), CHANNEL]
    header += [*encode("commentary json"), MESSAGE]
    analysis = _call_analysis(name, arguments, effort)
    return [*_reason(analysis), *header, *_arguments_ids(arguments, said), CALL]


def record(values: Mapping[str, Value], said: str, effort: ReasoningEffort) -> list[int]:
    """Return the ids of a reply that answers with a record, copying from what the user said."""
    text = think("tells me something", "I copy every value to its field.", effort)
    return answer(encode(text), _arguments_ids(values, said))


def _reason(analysis: list[int]) -> list[int]:
    return [CHANNEL, *encode("analysis"), MESSAGE, *analysis, END, START, ASSISTANT]


def _call_analysis(name: str, keys: Iterable[str], effort: ReasoningEffort) -> list[int]:
    """Reason about which tool fits and which arguments were given."""
    given = [*encode("("), *_joined((copy_of(encode(key)) for key in keys), ", "), *encode(").")]
    tool = [SPACE, *copy_of(encode(" " + name)), *given]
    if effort == "low":
        return [*encode("I call"), *tool]
    if effort == "medium":
        return [*encode("The user asks for something that a tool can do. I call"), *tool]
    before = "The user asks for something that a tool can do. I compare the request with each tool."
    after = " The arguments come from the user's words, and I leave out what was not said."
    return [*encode(before + " I call"), *tool, *encode(after)]


def result_analysis(effort: ReasoningEffort) -> list[int]:
    """Reason about a tool's result."""
    text = "The tool answered."
    if effort != "low":
        text += " I give its result to the user."
    if effort == "high":
        text += " I repeat every value as it is, add nothing of my own, and keep the answer short."
    return encode(text)


def sum_analysis(steps: str, effort: ReasoningEffort) -> list[int]:
    """Reason about a sum: its steps, which nano needs at every effort."""
    told = [*encode("The user asks for"), SPACE, *copy_of(encode(" a sum. " + steps))]
    return told + (encode(_SHORT) if effort == "high" else [])


def wish_analysis(wish: str, plan: str, effort: ReasoningEffort) -> list[int]:
    """Reason about a wish: first of what kind it is, which decides the answer."""
    told = next(start for start in _STARTS if wish.startswith(start))
    rest = wish.removeprefix(told)
    ids = [*encode(f"The user{told and ' ' + told}"), SPACE, *copy_of(encode(f" {rest.strip()}."))]
    if effort != "low":
        ids += encode(f" {plan}")
    if effort == "high":
        ids += encode(_SHORT)
    return ids


_STARTS = ("asks for", "asks about", "")
_SHORT = " The answer should be short and plain, and I add nothing that I do not know."


def arguments_text(arguments: Mapping[str, Value]) -> str:
    """Return a call's arguments as compact JSON."""
    return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)


def _arguments_ids(arguments: Mapping[str, Value], said: str) -> list[int]:
    """Return the ids of a call's arguments, copied from what the user said."""
    ids: list[int] = []
    marks = ""
    for is_mark, text in _chunks(arguments):
        if is_mark:
            marks += text
            continue
        ids += [*copy_of(encode(marks)), *copied(text, said)]
        marks = ""
    return ids + copy_of(encode(marks))


def _chunks(value: Value) -> Iterator[tuple[bool, str]]:
    if isinstance(value, dict):
        yield True, "{"
        for index, (key, item) in enumerate(value.items()):
            yield True, ',"' if index else '"'
            yield False, key
            yield True, '":'
            yield from _chunks(item)
        yield True, "}"
    elif isinstance(value, list):
        yield True, "["
        for index, item in enumerate(value):
            yield True, "," if index else ""
            yield from _chunks(item)
        yield True, "]"
    elif isinstance(value, str):
        yield True, '"'
        yield False, value
        yield True, '"'
    else:
        yield False, json.dumps(value)


def result_ids(content: str) -> list[int]:
    """Return the ids of the answer that repeats a tool's result."""
    if not content:
        return encode("The tool returned nothing.")
    return [*encode("The result is:"), SPACE, *copy_of(encode(content))]


def _joined(parts: Iterator[list[int]], mark: str) -> list[int]:
    ids: list[int] = []
    for index, part in enumerate(parts):
        for piece in mark if index else "":
            ids += encode(piece)
        ids += part
    return ids
