"""Prompts and answers taken apart into turns, for traces; nothing is repaired here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Literal

from service.conversation import Turn
from service.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    RETURN,
    START,
    decode_bytes,
)

_ENDS = frozenset({START, END, RETURN, CALL})
_MARKS = _ENDS | {CHANNEL, CONSTRAIN, MESSAGE}


def turns_of(token_ids: Sequence[int]) -> list[Turn]:
    """The turns of a prompt or an answer; a header without a text at the end is left out."""
    messages: list[list[int]] = [[]]
    for token_id in token_ids:
        if token_id in _ENDS:
            messages.append([])
        else:
            messages[-1].append(token_id)
    return [_turn(message) for message in messages if MESSAGE in message]


def _turn(token_ids: list[int]) -> Turn:
    start = token_ids.index(MESSAGE)
    head, body = token_ids[:start], token_ids[start + 1 :]
    role = _text(list(takewhile(lambda id: id not in _MARKS, head))).split(" ")[0]
    channel = _text(head[head.index(CHANNEL) + 1 :]).split(" ")[0] if CHANNEL in head else ""
    is_call = channel == "commentary" and " to=" in _text(head)
    kind: Literal["text", "reasoning", "tool_call"]
    kind = "reasoning" if channel == "analysis" else "tool_call" if is_call else "text"
    return Turn(role or "assistant", kind, _text(body))


def _text(token_ids: list[int]) -> str:
    ordinary = [id for id in token_ids if id not in _MARKS]
    return b"".join(map(decode_bytes, ordinary)).decode("utf-8", "replace")
