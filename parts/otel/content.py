"""Prompts and answers in the shape of the GenAI conventions; used only when switched on."""

from __future__ import annotations

import json
from collections.abc import Sequence

from service.chat_format import ChatFormat
from service.conversation import Turn


def input_messages(format: ChatFormat, token_ids: Sequence[int]) -> str:
    """A rendered prompt as the conventions' JSON, without the answer's header at its end."""
    turns = format.turns_of(token_ids)
    return json.dumps([{"role": turn.role, "parts": [_part(turn)]} for turn in turns])


def output_messages(format: ChatFormat, choices: Sequence[tuple[Sequence[int], str]]) -> str:
    """Each choice's ids and finish reason as the conventions' JSON."""
    messages = []
    for token_ids, reason in choices:
        parts = [_part(turn) for turn in format.turns_of(token_ids)]
        messages.append({"role": "assistant", "parts": parts, "finish_reason": reason})
    return json.dumps(messages)


def _part(turn: Turn) -> dict[str, str]:
    return {"type": turn.kind, "content": turn.text}
