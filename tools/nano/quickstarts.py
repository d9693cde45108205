"""What people paste first: the quickstart examples of `quickstarts.yaml`, half of them held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from service.conversation import Conversation, Message, ResponseFormat, Tool
from tools.nano.first_request import First
from tools.nano.tools import listed_tools
from tools.nano.values import Value
from tools.nano.words import Words

_DATE = "2026-01-31"
ANY = "*"  # a value that the request does not tell
_NUM_HELD_OUT = 20


@dataclass(frozen=True, slots=True)
class Quickstart:
    """One published example: what is sent, and what is a right answer."""

    id: str
    prompt: Conversation
    call: str  # the wanted tool; empty: the answer is JSON
    values: Mapping[str, Sequence[Any]]  # the accepted spellings of each
    must_call: str = ""  # a tool's name, or `any`

    @property
    def said(self) -> str:
        """The request's text."""
        return self.prompt.messages[-1].content

    @property
    def texts(self) -> frozenset[str]:
        """What no training dialogue may hold if this is held out: request and descriptions."""
        told = {tool.description for tool in self.prompt.tools}
        if self.prompt.response_format:
            told.add(self.prompt.response_format.name)
        return frozenset({self.said, *told} - {"", ResponseFormat({}).name, _FINAL_RESULT})

    def ways(self) -> list[Conversation]:
        """Return the prompt, and where it is published strict and not, the other one too."""
        if self.id not in _BOTH_WAYS:
            return [self.prompt]
        loose = tuple(replace(tool, strict=None) for tool in self.prompt.tools)
        return [self.prompt, replace(self.prompt, tools=loose)]


_BOTH_WAYS = frozenset({"openai-get-weather"})
_FINAL_RESULT = "The final response which ends this conversation"  # of every pydantic-ai output


@cache
def quickstarts() -> tuple[Quickstart, ...]:
    """Read every example."""
    entries = yaml.safe_load(Path(__file__).with_name("quickstarts.yaml").read_text())
    return tuple(_read(entry) for entry in entries)


def _read(entry: Mapping[str, Any]) -> Quickstart:
    messages = tuple(Message(m["role"], m["content"]) for m in entry["messages"])
    tools = tuple(Tool(**tool) for tool in entry.get("tools", ()))
    format = ResponseFormat(**entry["format"]) if "format" in entry else None
    prompt = Conversation(messages, _DATE, tools, response_format=format)
    call, must_call = entry.get("call", ""), entry.get("must_call", "")
    return Quickstart(entry["id"], prompt, call, entry["values"], must_call)


@cache
def held_out() -> frozenset[str]:
    """Return the ids of the half that no training sees.

    Examples that share a request or a description are kept together. These groups are taken in
    the order of the SHA-256 of their first id, as long as they fit into the half.
    """
    chosen: set[str] = set()
    for group in sorted(_groups(), key=lambda ids: sha256(min(ids).encode()).hexdigest()):
        if len(chosen) + len(group) <= _NUM_HELD_OUT:
            chosen |= group
    return frozenset(chosen)


def _groups() -> list[set[str]]:
    groups: list[tuple[set[str], set[str]]] = []  # ids, texts
    for one in quickstarts():
        ids, texts = {one.id}, set(one.texts)
        for group in [g for g in groups if g[1] & texts]:
            groups.remove(group)
            ids, texts = ids | group[0], texts | group[1]
        groups.append((ids, texts))
    return [ids for ids, _ in groups]


@cache
def held_out_texts() -> frozenset[str]:
    """Return the requests and descriptions that training must not hold."""
    kept = (one.texts for one in quickstarts() if one.id in held_out())
    return frozenset[str]().union(*kept)


@cache
def known_names() -> frozenset[str]:
    """Return the names of listed tools and of the examples that training may see."""
    seen = (one.prompt.tools for one in quickstarts() if one.id not in held_out())
    listed = (spec.name for spec in listed_tools("train"))
    return frozenset((*listed, *(tool.name for tools in seen for tool in tools)))


def varied(words: Words) -> First | None:
    """Draw a tool example that is not held out, mostly with other places, codes and numbers."""
    one = words.rng.choice(quickstarts())
    if one.id in held_out() or not one.call or is_held_out_tool(one):
        return None
    values = {key: wishes[0] for key, wishes in one.values.items()}
    said, told = one.said, {key: value for key, value in values.items() if value != ANY}
    if words.rng.random() < 0.85:
        drawn = {key: _other(words, value) for key, value in told.items()}
        for key, value in told.items():
            if str(value) not in said:
                drawn = told
                break
            said = said.replace(str(value), f"{{{key}}}")
        said = one.said if drawn is told else said.format(**drawn)
        told = drawn
    schema = next(tool for tool in one.prompt.tools if tool.name == one.call).parameters or {}
    free = {key: schema["properties"][key]["enum"][0] for key in values if key not in told}
    head = "".join(message.content for message in one.prompt.messages[:-1])
    return First(said, one.prompt.tools, one.call, {**told, **free}, head)


def published_record(words: Words) -> tuple[Conversation, dict[str, Value]]:
    """Draw an example that is answered with JSON and not held out, and its record."""
    fitting = [one for one in quickstarts() if not one.call and one.id not in held_out()]
    one = words.rng.choice(fitting)
    return one.prompt, {key: wishes[0] for key, wishes in one.values.items()}


def is_held_out_tool(one: Quickstart) -> bool:
    """Say whether a tool is of the listed ones that are held out."""
    listed = {spec.name for spec in listed_tools("heldout")}
    return any(tool.name in listed for tool in one.prompt.tools)


def _other(words: Words, value: Value) -> Value:
    if isinstance(value, int):
        return words.rng.randint(0, max(12, 10 * value))
    if isinstance(value, str) and value[-1].isdigit() and value[0].isalpha():
        return words.code()
    return words.place() if isinstance(value, str) and value[0].isalpha() else value
