"""Conversation to prompt token ids, in the documented Harmony format.

Pure and deterministic: the date is part of the conversation. What a client wrote only
ever becomes ordinary ids; the control tokens of the prompt are written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from service.harmony.errors import UnknownToolCall
from service.harmony.types import Conversation, Message, ResponseFormat
from service.harmony.typescript import describe_tools
from service.harmony.vocabulary import CALL, CHANNEL, END, MESSAGE, START, encode_text

_INSTRUCTION_ROLES = ("system", "developer")
_IDENTITY = """\
You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: {date}

Reasoning: {effort}

# Valid channels: analysis, commentary, final. Channel must be included for every message."""
_TOOL_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."

NUM_OPENING_TOKENS = 2  # `<|start|>assistant`, with which every prompt ends


def render(conversation: Conversation) -> list[int]:
    """Give the prompt of a conversation; it ends where the assistant's next header begins.

    Raises UnknownToolCall where a tool message answers no earlier call.
    """
    token_ids = _turn("system", _system_text(conversation))
    num_leading = _num_leading(conversation.messages)
    if text := _developer_text(conversation, num_leading):
        token_ids += _turn("developer", text)
    for turn in _history(conversation.messages, num_leading):
        token_ids += turn
    return [*token_ids, START, *encode_text("assistant")]


def _turn(author: str, text: str, channel: str = "", end: int = END) -> list[int]:
    token_ids = [START, *encode_text(author)]
    if channel:
        token_ids += [CHANNEL, *encode_text(channel)]
    return [*token_ids, MESSAGE, *encode_text(text), end]


def _system_text(conversation: Conversation) -> str:
    text = _IDENTITY.format(date=conversation.current_date, effort=conversation.reasoning_effort)
    return text + (_TOOL_CHANNEL if conversation.tools else "")


def _num_leading(messages: Sequence[Message]) -> int:
    """Count the instructions before the first message of another role."""
    for index, message in enumerate(messages):
        if message.role not in _INSTRUCTION_ROLES:
            return index
    return len(messages)


def _developer_text(conversation: Conversation, num_leading: int) -> str:
    instructions = [m.content for m in conversation.messages[:num_leading] if m.content]
    sections = [_instructions("\n\n".join(instructions))] if instructions else []
    if conversation.tools:
        sections.append(describe_tools(conversation.tools))
    if conversation.response_format:
        sections.append(_response_format(conversation.response_format))
    return "\n\n".join(sections)


def _instructions(text: str) -> str:
    return f"# Instructions\n\n{text}"


def _response_format(format: ResponseFormat) -> str:
    notes = "".join(f"// {line}".rstrip() + "\n" for line in format.description.splitlines())
    schema = json.dumps(format.schema, ensure_ascii=False, separators=(",", ":"))
    return f"# Response Formats\n\n## {format.name}\n\n{notes}{schema}"


def _history(messages: Sequence[Message], start: int) -> Iterator[list[int]]:
    last_final = _last_final(messages)
    names: dict[str | None, str] = {}  # tool call id -> function, as far as we have read
    for index in range(start, len(messages)):
        message = messages[index]
        names |= {call.id: call.name for call in message.tool_calls}
        if message.role == "assistant":
            yield from _assistant(message, keeps_reasoning=index > last_final)
        elif message.role == "tool":
            yield _tool_result(message, names, index)
        elif message.role == "user":
            yield _turn("user", message.content)
        elif message.content:
            yield _turn("developer", _instructions(message.content))


def _last_final(messages: Sequence[Message]) -> int:
    """Find the last answer: reasoning up to it is spent and leaves the prompt."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "assistant" and message.content and not message.tool_calls:
            return index
    return -1


def _assistant(message: Message, *, keeps_reasoning: bool) -> Iterator[list[int]]:
    if message.reasoning and keeps_reasoning:
        yield _turn("assistant", message.reasoning, "analysis")
    if message.content:
        yield _turn("assistant", message.content, "commentary" if message.tool_calls else "final")
    for call in message.tool_calls:
        author = f"assistant to=functions.{call.name}"
        yield _turn(author, call.arguments, "commentary json", CALL)


def _tool_result(message: Message, names: dict[str | None, str], index: int) -> list[int]:
    if message.tool_call_id not in names:
        raise UnknownToolCall(message.tool_call_id, index)
    author = f"functions.{names[message.tool_call_id]} to=assistant"
    return _turn(author, message.content, "commentary")
