"""Steps → one whole message of Anthropic's API, or the bytes of its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from parts.messages.blocks import Block, Blocks, message_usage, stop_reason
from parts.messages.response_schema import AppliedEdits, ClearedThinking, MessageUsage
from parts.messages.server_tools import citation
from service.answer.choice import ChoiceStep, coalesced
from service.answer.generation import Generation
from service.api.common.metrics import metrics_field
from service.conversation import DeltaKind
from service.http.failures import ErrorAnswer
from service.request import Counted

_encode = msgspec.json.encode

_FIELDS = {
    DeltaKind.CONTENT: b'"text_delta","text":',
    DeltaKind.REASONING: b'"thinking_delta","thinking":',
    DeltaKind.TOOL_CALL: b'"input_json_delta","partial_json":',
    DeltaKind.HOSTED_CALL: b'"input_json_delta","partial_json":',
}
_NOTHING: Final = {"stop_details": None, "container": None}  # clients' schemas require them


@dataclass(frozen=True, slots=True)
class Cleared:
    """The thoughts that an edit of the context took out of a prompt."""

    num_turns: int
    num_tokens: int  # of the prompt; at most MAX_COUNTED are counted


class MessageHead:
    """The fields of a message that are known before it is written."""

    def __init__(
        self,
        generation: Generation,
        *,
        id: str,
        model: str,
        max_tokens: int,
        new_call_id: Callable[[], str],
        omits_thinking: bool = False,
        cleared: Cleared | None = None,
        compacted: dict[str, Any] | None = None,
        cost: Counted | None = None,
    ) -> None:
        self.generation = generation
        self.id = id
        self.model = model
        self.compacted = compacted  # the block before all others
        num_before = 0 if compacted is None else 1
        self.blocks = Blocks(new_call_id, omits_thinking=omits_thinking, num_before=num_before)
        self._cost = cost  # of that block
        self._edits = _edits(cleared)
        self._is_cut_by_context = generation.plan.sampling.max_tokens < max_tokens

    def message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The message without content and end."""
        return message_of(self.id, self.model, self.usage()) | {"content": content}

    def usage(self) -> MessageUsage:
        """What the message has cost so far."""
        counts = self.blocks.server_tool_use
        return message_usage(self.generation, self._cost, server_tool_use=counts)

    def cited(self, block: Block) -> list[dict[str, Any]]:
        """The pages of the tool `browser` that a text cites."""
        hosted = self.generation.choices[0].hosted
        if hosted is None or block.kind is not DeltaKind.CONTENT:
            return []
        cited = hosted.sources.cited(block.text)
        return [citation(each.url, each.title, each.quoted) for each in cited]

    def whole(self, block: Block) -> dict[str, Any]:
        whole, cited = block.whole(), self.cited(block)
        return whole | {"citations": cited} if cited else whole

    @property
    def last_fields(self) -> dict[str, Any]:
        """Beside the message's end: what was taken out of the prompt, and the times."""
        return {**self._edits, **metrics_field(self.generation)}

    def ending(self) -> dict[str, Any]:
        """The fields that say why the message ended, once it has."""
        choice = self.generation.choices[0]
        reason = stop_reason(choice, is_cut_by_context=self._is_cut_by_context)
        is_stopped = reason == "stop_sequence"
        return {
            "stop_reason": reason,
            "stop_sequence": choice.stop_string if is_stopped else None,
            **_NOTHING,
        }


def message_of(id: str, model: str, usage: MessageUsage) -> dict[str, Any]:
    """A message without content and end."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        **_NOTHING,
        "usage": usage.model_dump(),
    }


class MessageAnswer:
    """Collects the steps into one message."""

    def __init__(self, head: MessageHead) -> None:
        self._head = head

    def add(self, step: ChoiceStep) -> None:
        for delta in step.deltas:
            self._head.blocks.add(delta)

    def body(self) -> bytes:
        content = [self._head.whole(block) for block in self._head.blocks.blocks]
        if self._head.compacted is not None:
            content.insert(0, self._head.compacted)
        return _encode(self._head.message(content) | self._head.ending() | self._head.last_fields)


class MessageEvents:
    """Encodes one stream's events; every method gives whole events, ready to send."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'
    # message_stop ends the stream; there is no [DONE] as on OpenAI's routes.
    terminator = b""

    def __init__(self, head: MessageHead) -> None:
        self._head = head
        self._open: Block | None = None

    def begin(self) -> bytes:
        """The event of the message without content, and a ping as the original sends one."""
        first = self._head.compacted
        before = b"" if first is None else events_of_block(0, first)
        start = writes_event("message_start", {"message": self._head.message([])})
        return start + self.keep_alive + before

    def step(self, step: ChoiceStep) -> bytes:
        events: list[bytes] = []
        for delta in coalesced(step.deltas):
            block = self._head.blocks.add(delta)
            if block is not self._open:
                events += [self._close(), self._start(block)]
            if delta.text and not block.is_omitted and block.call is None:
                events.append(_delta(block.index, _FIELDS[block.kind], delta.text))
        return b"".join(events)

    def end(self) -> bytes:
        """The events of why the message ended, and of its usage."""
        usage = self._head.usage().model_dump()
        fields = {"delta": self._head.ending(), "usage": usage, **self._head.last_fields}
        ending = writes_event("message_delta", fields)
        return self._close() + ending + writes_event("message_stop", {})

    def error(self, failure: ErrorAnswer) -> bytes:
        return b"event: error\ndata: " + _encode(failure.anthropic_body()) + b"\n\n"

    def _start(self, block: Block) -> bytes:
        self._open = block
        fields = {"index": block.index, "content_block": block.opening()}
        return writes_event("content_block_start", fields)

    def _close(self) -> bytes:
        block, self._open = self._open, None
        if block is None:
            return b""
        stop = writes_event("content_block_stop", {"index": block.index})
        for each in reversed(self._head.cited(block)):
            delta = {"type": "citations_delta", "citation": each}
            stop = (
                writes_event("content_block_delta", {"index": block.index, "delta": delta}) + stop
            )
        if block.kind is not DeltaKind.REASONING:
            return stop
        # As in the original, the signature is the last that comes of a block of thoughts.
        return _delta(block.index, b'"signature_delta","signature":', block.signature()) + stop


def _edits(cleared: Cleared | None) -> dict[str, Any]:
    """The applied edits of the context, if any were requested."""
    if cleared is None:
        return {}
    turns, tokens = cleared.num_turns, cleared.num_tokens
    edit = ClearedThinking(cleared_thinking_turns=turns, cleared_input_tokens=tokens)
    applied = AppliedEdits(applied_edits=[edit] if turns else [])
    return {"context_management": applied.model_dump()}


def events_of_block(index: int, block: dict[str, Any]) -> bytes:
    """The events of a compaction block, which comes whole."""
    opening = {"type": block["type"], "content": None}
    delta = {**block, "type": "compaction_delta"}
    start = writes_event("content_block_start", {"index": index, "content_block": opening})
    middle = writes_event("content_block_delta", {"index": index, "delta": delta})
    return start + middle + writes_event("content_block_stop", {"index": index})


def writes_event(type: str, fields: Mapping[str, Any]) -> bytes:
    """An event, ready to send."""
    return b"event: %b\ndata: %b\n\n" % (type.encode(), _encode({"type": type, **fields}))


def _delta(index: int, field: bytes, text: str) -> bytes:
    head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,' % index
    return head + b'"delta":{"type":%b%b}}\n\n' % (field, _encode(text))
