"""Prompts and answers in the shape of the GenAI conventions; used only when switched on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from service.harmony import vocabulary
from service.harmony.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START

_ENDS = frozenset({START, END, RETURN, CALL})
_MARKS = _ENDS | {CHANNEL, CONSTRAIN, MESSAGE}
_KINDS = {"analysis": "reasoning", "commentary": "tool_call"}


def input_messages(token_ids: Sequence[int]) -> str:
    """A rendered prompt as the conventions' JSON, without the answer's header at its end."""
    return json.dumps([_message(part) for part in _split(token_ids) if MESSAGE in part])


def output_messages(choices: Sequence[tuple[Sequence[int], str]]) -> str:
    """Each choice's ids and finish reason as the conventions' JSON."""
    messages = []
    for token_ids, reason in choices:
        parts = [part for part in _split((START, *token_ids)) if MESSAGE in part]
        spoken = [part for message in parts for part in _message(message)["parts"]]
        messages.append({"role": "assistant", "parts": spoken, "finish_reason": reason})
    return json.dumps(messages)


def _split(token_ids: Sequence[int]) -> list[list[int]]:
    """The ids of each message, without what begins and ends it."""
    messages: list[list[int]] = [[]]
    for token_id in token_ids:
        if token_id in _ENDS:
            messages.append([])
        else:
            messages[-1].append(token_id)
    return messages


def _message(token_ids: list[int]) -> dict[str, Any]:
    start = token_ids.index(MESSAGE)
    head, body = token_ids[:start], token_ids[start + 1 :]
    role = _text(list(takewhile(lambda id: id not in _MARKS, head))).split(" ")[0]
    channel = _text(head[head.index(CHANNEL) + 1 :]).split(" ")[0] if CHANNEL in head else ""
    kind = _KINDS.get(channel, "text") if " to=" in _text(head) or channel == "analysis" else "text"
    return {"role": role or "assistant", "parts": [{"type": kind, "content": _text(body)}]}


def _text(token_ids: list[int]) -> str:
    ordinary = [id for id in token_ids if id not in _MARKS]
    return b"".join(map(vocabulary.decode_bytes, ordinary)).decode("utf-8", "replace")
