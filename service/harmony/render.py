"""Conversation to prompt token ids, in the documented Harmony format.

Pure and deterministic: the date is part of the conversation. What a client wrote only
ever becomes ordinary ids; the control tokens of the prompt are written here.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from service.conversation import (
    INSTRUCTION_ROLES,
    Conversation,
    Message,
    ReasoningEffort,
    ResponseFormat,
    ToolCall,
    UnknownToolCall,
)
from service.harmony.header import ALL_RECIPIENTS, recipient_of
from service.harmony.typescript import MAX_STEPS, describe_tools
from service.harmony.vocabulary import CALL, CHANNEL, END, MESSAGE, START, encode_text
from service.work import rest

_IDENTITY = """\
You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: {date}

Reasoning: {effort}

{tools}# Valid channels: analysis, commentary, final. Channel must be included for every message."""
# gpt-oss knows three levels; the others of the published schemas mean the nearest of them.
_EFFORTS: Mapping[ReasoningEffort, str] = {
    None: "medium",
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
# gpt-oss has no control for it and was not trained on these lines: they are instructions.
_VERBOSITY = {
    "low": "Answer briefly: give what was asked for, without explanations that were not.",
    "high": "Answer in detail: explain steps and background, with examples where they help.",
}
_TOOL_CHANNEL = "\nCalls to these tools must go to the commentary channel: {namespaces}."


def render(conversation: Conversation, max_steps: int = MAX_STEPS) -> list[int]:
    token_ids = _turn("system", _system_text(conversation))
    num_leading = _num_leading(conversation.messages)
    if text := _developer_text(conversation, num_leading, max_steps):
        token_ids += _turn("developer", text)
    for turn in _History(conversation).turns(num_leading):
        token_ids += turn
    return [*token_ids, *_opening()] if conversation.opens_answer else token_ids


def render_result(recipient: str, text: str, *, max_tokens: int) -> list[int]:
    """The end of a built-in tool's call and its result, up to where the assistant continues.

    What is over `max_tokens` of all this is cut off the text.
    """
    opening = _opening()
    head = _turn(f"{recipient} to=assistant", "", "analysis")[:-1]
    room = max(max_tokens - len(head) - len(opening) - 2, 0)
    return [CALL, *head, *encode_text(text)[:room], END, *opening]


def _opening() -> list[int]:
    return [START, *encode_text("assistant")]


def _turn(author: str, text: str, channel: str = "", end: int = END) -> list[int]:
    token_ids = [START, *encode_text(author)]
    if channel:
        token_ids += [CHANNEL, *encode_text(channel)]
    return [*token_ids, MESSAGE, *encode_text(text), end]


def _system_text(conversation: Conversation) -> str:
    tools = f"{describe_builtins(conversation.builtins)}\n\n" if conversation.builtins else ""
    date, effort = conversation.current_date, _EFFORTS[conversation.reasoning_effort]
    text = _IDENTITY.format(date=date, effort=effort, tools=tools)
    namespaces = dict.fromkeys(tool.namespace for tool in conversation.tools)
    if not namespaces:
        return text
    return text + _TOOL_CHANNEL.format(namespaces=", ".join(f"'{name}'" for name in namespaces))


def _num_leading(messages: Sequence[Message]) -> int:
    """Count the instructions before the first message of another role."""
    for index, message in enumerate(messages):
        if message.role not in INSTRUCTION_ROLES:
            return index
    return len(messages)


def _developer_text(conversation: Conversation, num_leading: int, max_steps: int) -> str:
    instructions = [m.content for m in conversation.messages[:num_leading] if m.content]
    if conversation.verbosity in _VERBOSITY:
        instructions.append(_VERBOSITY[conversation.verbosity])
    sections = [_instructions("\n\n".join(instructions))] if instructions else []
    if conversation.tools:
        sections.append(describe_tools(conversation.tools, conversation.namespaces, max_steps))
    if conversation.response_format:
        sections.append(_response_format(conversation.response_format))
    return "\n\n".join(sections)


def _instructions(text: str) -> str:
    return f"# Instructions\n\n{text}"


def _response_format(format: ResponseFormat) -> str:
    notes = "".join(f"// {line}".rstrip() + "\n" for line in format.description.splitlines())
    schema = json.dumps(format.schema, ensure_ascii=False, separators=(",", ":"))
    return f"# Response Formats\n\n## {format.name}\n\n{notes}{schema}"


class _History:
    """The messages behind the instructions, as turns."""

    def __init__(self, conversation: Conversation) -> None:
        self._messages = conversation.messages
        self._first_thought = first_reasoning(conversation.messages)
        self._functions = frozenset(tool.name for tool in conversation.tools)
        # By id, as far as we have read; some clients give one id to all calls of a message.
        self._calls: dict[str | None, deque[ToolCall]] = {}

    def turns(self, start: int) -> Iterator[list[int]]:
        """The ids of each turn from this message on."""
        for index in range(start, len(self._messages)):
            rest()
            message = self._messages[index]
            self._calls |= {call.id: deque() for call in message.tool_calls}
            for call in message.tool_calls:
                self._calls[call.id].append(call)
            if message.role == "assistant":
                yield from self._assistant(message, is_current=index >= self._first_thought)
            elif message.role == "tool":
                yield from self._tool_result(message, index)
            elif message.role == "user":
                yield _turn("user", message.content)
            elif message.content:
                yield _turn("developer", _instructions(message.content))

    def _assistant(self, message: Message, *, is_current: bool) -> Iterator[list[int]]:
        if message.reasoning and is_current:
            yield _turn("assistant", message.reasoning, "analysis")
        if message.content:
            channel = "commentary" if message.tool_calls else "final"
            yield _turn("assistant", message.content, channel)
        for call in message.tool_calls:
            rest()
            if not self._is_builtin(call):
                author = f"assistant to={recipient_of(call.name)}"
                channel = "commentary" if call.is_custom else "commentary json"
                yield _turn(author, call.arguments, channel, CALL)
            elif is_current:  # built-in tools are a part of the reasoning
                yield _turn(f"assistant to={call.name}", call.arguments, "analysis code", CALL)

    def _tool_result(self, message: Message, index: int) -> Iterator[list[int]]:
        calls = self._calls.get(message.tool_call_id)
        if calls is None:
            raise UnknownToolCall(message.tool_call_id, index)
        call = calls.popleft() if len(calls) > 1 else calls[0]  # results are in the calls' order
        if not self._is_builtin(call):
            yield _turn(f"{recipient_of(call.name)} to=assistant", message.content, "commentary")
        elif index >= self._first_thought:
            yield _turn(f"{call.name} to=assistant", message.content, "analysis")

    def _is_builtin(self, call: ToolCall) -> bool:
        """A function may be called `python` as well, but is called with an object."""
        is_code = call.name != "python" or not call.arguments.lstrip().startswith("{")
        return call.name in ALL_RECIPIENTS and call.name not in self._functions and is_code


def first_reasoning(messages: Sequence[Message]) -> int:
    """The index behind the last answer: reasoning up to that leaves the prompt."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "assistant" and message.content and not message.tool_calls:
            return index + 1
    return 0


def describe_builtins(tools: Iterable[str]) -> str:
    """The `# Tools` section of a system message."""
    sections = [_DESCRIPTIONS[tool] for tool in sorted(tools)]
    return "\n\n".join(["# Tools", *sections])


# The texts are those of openai-harmony, token for token (a test compares).
_BROWSER = """\
## browser

// Tool for browsing.
// The `cursor` appears in brackets before each browsing display: `[{cursor}]`.
// Cite information from the tool using the following format:
// `【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.
// Do not quote more than 10 words directly from the tool output.
// sources=web (default: web)
namespace browser {

// Searches for information related to `query` and displays `topn` results.
type search = (_: {
query: string,
topn?: number, // default: 10
source?: string,
}) => any;

// Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, \
showing `num_lines` lines.
// Valid link ids are displayed with the formatting: `【{id}†.*】`.
// If `cursor` is not provided, the most recent page is implied.
// If `id` is a string, it is treated as a fully qualified URL associated with `source`.
// If `loc` is not provided, the viewport will be positioned at the beginning of the document \
or centered on the most relevant passage, if available.
// Use this function without `id` to scroll to a new location of an opened page.
type open = (_: {
id?: number | string, // default: -1
cursor?: number, // default: -1
loc?: number, // default: -1
num_lines?: number, // default: -1
view_source?: boolean, // default: false
source?: string,
}) => any;

// Finds exact matches of `pattern` in the current page, or the page given by `cursor`.
type find = (_: {
pattern: string,
cursor?: number, // default: -1
}) => any;

} // namespace browser"""
_PYTHON = """\
## python

Use this tool to execute Python code in your chain of thought. The code will not be shown to \
the user. This tool should be used for internal reasoning, but not for code that is intended to \
be visible to the user (e.g. when creating plots, tables, or files).

When you send a message containing Python code to python, it will be executed in a stateful \
Jupyter notebook environment. python will respond with the output of the execution or time out \
after 120.0 seconds. The drive at '/mnt/data' can be used to save and persist user files. \
Internet access for this session is UNKNOWN. Depends on the cluster."""
_DESCRIPTIONS = {"browser": _BROWSER, "python": _PYTHON}
