"""Deltas → the content blocks of Anthropic's API, the same whole and streamed."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from pydantic_core import from_json

from parts.messages.response_schema import (
    MessageTokensDetails,
    MessageUsage,
    ServerToolCounts,
    StopReason,
)
from parts.messages.server_tools import WEB_FETCH, WEB_SEARCH, name_of, result_block, use_id
from service.answer.choice import Choice
from service.conversation import Delta, DeltaKind
from service.request import Counted

# Replaces an input that is not a JSON object, so that the model's text is not lost.
UNPARSED_KEY = "__unparsed__"

_MARK: Final = "thoughts:"


@dataclass(slots=True)
class Block:
    """One content block while it is written."""

    index: int
    kind: DeltaKind
    id: str = ""  # of a call
    name: str = ""
    call: Block | None = None  # of a result
    is_omitted: bool = False  # thoughts that only the signature has
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def opening(self) -> dict[str, Any]:
        """The block as it is announced, without its text."""
        if self.kind is DeltaKind.TOOL_CALL:
            call = {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}
            return call | {"caller": {"type": "direct"}}
        if self.kind is DeltaKind.HOSTED_CALL:
            call = {"type": "server_tool_use", "id": self.id, "name": name_of(self.name)}
            return call | {"input": {}, "caller": {"type": "direct"}}
        if self.call is not None:
            called, has_failed = self.call, self.name == "failed"
            return result_block(
                called.name, called.id, called.text, self.text, has_failed=has_failed
            )
        if self.kind is DeltaKind.REASONING:
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": "", "citations": []}

    def whole(self) -> dict[str, Any]:
        if self.kind in (DeltaKind.TOOL_CALL, DeltaKind.HOSTED_CALL):
            return self.opening() | {"input": _input(self.text)}
        if self.call is not None:
            return self.opening()
        if self.kind is DeltaKind.REASONING:
            shown = "" if self.is_omitted else self.text
            return self.opening() | {"thinking": shown, "signature": self.signature()}
        return self.opening() | {"text": self.text}

    def signature(self) -> str:
        """A digest of the thoughts, on which nothing depends; omitted thoughts themselves."""
        if self.is_omitted:
            return sealed(self.text)
        return base64.b64encode(hashlib.sha256(self.text.encode()).digest()).decode()


class Blocks:
    """The blocks of one answer; neighbouring deltas of one kind share a block."""

    def __init__(
        self, new_call_id: Callable[[], str], *, omits_thinking: bool = False, num_before: int = 0
    ) -> None:
        """`num_before`: blocks of the message that are not among these."""
        self._num_before = num_before
        self._new_call_id = new_call_id
        self._omits_thinking = omits_thinking
        self.blocks: list[Block] = []

    def add(self, delta: Delta) -> Block:
        """Take a delta; give the block that it went to, which may be a new one."""
        kind, last = delta.kind, self.blocks[-1] if self.blocks else None
        if kind is DeltaKind.ARGUMENTS:
            kind = DeltaKind.TOOL_CALL
        if last is None or last.kind is not kind or delta.kind is DeltaKind.TOOL_CALL:
            id = self._new_call_id() if kind is DeltaKind.TOOL_CALL else ""
            if kind is DeltaKind.HOSTED_CALL:
                id = use_id(self._new_call_id().partition("_")[2])
            call = last if kind is DeltaKind.HOSTED_RESULT else None
            is_omitted = self._omits_thinking and kind is DeltaKind.REASONING
            index = self._num_before + len(self.blocks)
            last = Block(index, kind, id, delta.name, call, is_omitted=is_omitted)
            self.blocks.append(last)
        last.pieces.append(delta.text)
        return last

    @property
    def server_tool_use(self) -> ServerToolCounts | None:
        """How often this server ran which tool, if it did."""
        names = [name_of(b.name) for b in self.blocks if b.kind is DeltaKind.HOSTED_CALL]
        if not names:
            return None
        return ServerToolCounts(
            web_search_requests=names.count(WEB_SEARCH), web_fetch_requests=names.count(WEB_FETCH)
        )


def stop_reason(choice: Choice, *, is_cut_by_context: bool) -> StopReason:
    """The reason why the answer ended; `is_cut_by_context`: the context left less than
    `max_tokens`."""
    if choice.finish_reason == "length":
        return "model_context_window_exceeded" if is_cut_by_context else "max_tokens"
    if choice.finish_reason == "tool_calls":
        return "tool_use"
    return "stop_sequence" if choice.stop_string is not None else "end_turn"


def message_usage(
    *done: Counted | None, server_tool_use: ServerToolCounts | None = None
) -> MessageUsage:
    """The token counts of these under Anthropic's names: cached tokens count apart."""
    counted = [each for each in done if each is not None]
    num_cached = sum(each.num_cached_tokens for each in counted)
    num_thoughts = sum(each.num_reasoning_tokens for each in counted)
    return MessageUsage(
        input_tokens=sum(each.num_prompt_tokens for each in counted) - num_cached,
        cache_read_input_tokens=num_cached,
        output_tokens=sum(each.num_completion_tokens for each in counted),
        output_tokens_details=MessageTokensDetails(thinking_tokens=num_thoughts),
        server_tool_use=server_tool_use,
    )


def _input(arguments: str) -> Any:
    """The call's input: the model's own characters if they are an object.

    Arguments that were cut off give what can be read of them, as the SDK's streams do.
    """
    try:
        parsed = from_json(arguments or "{}", allow_inf_nan=False)
        if isinstance(parsed, dict):
            return msgspec.Raw(arguments.encode() or b"{}")
    except ValueError:
        pass
    try:
        parsed = from_json(arguments, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {UNPARSED_KEY: arguments}


def sealed(thoughts: str) -> str:
    """The thoughts as a signature that unsealed() reads."""
    return _MARK + base64.b64encode(thoughts.encode()).decode()


def unsealed(signature: str) -> str:
    """The thoughts in a signature; "" for one that is not of this server."""
    if not signature.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(signature[len(_MARK) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
