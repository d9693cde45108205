"""Compaction in Anthropic's API: blocks of a history, an edit of the context, summaries alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from starlette.types import Send

from parts.messages.answer import events_of_block, message_of, writes_event
from parts.messages.blocks import message_usage
from parts.messages.conversation import MessageHistory
from parts.messages.schema import CompactEdit, CountTokensRequest, MessagesRequest
from service.compaction import Compactor, no_compaction, summary_message
from service.conversation import Conversation, Message
from service.errors import RequestError
from service.http.failures import ended_by
from service.http.streaming import SSE_HEADERS, LiveResponse, send_json
from service.request import Counted, RequestContext
from service.runtime import Runtime

_MOST_TAIL_BYTES: Final = 128 << 10  # a longer tool loop is summarized, too
_DEFAULT_TOKENS: Final = 150_000
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class _Kept(msgspec.Struct, frozen=True, tag="messages"):
    """What is sealed in a compaction block."""

    summary: str
    tail: list[Message]  # of the turn that was not answered


_read = msgspec.json.Decoder(_Kept).decode


@dataclass(frozen=True, slots=True)
class CompactedTurns:
    """A conversation after its compaction: as it is continued, the block, and the cost."""

    conversation: Conversation
    block: dict[str, Any]
    cost: Counted


async def open_history(
    history: MessageHistory, compactor: Compactor | None, context: RequestContext
) -> None:
    """Replace what is before the last compaction block by its summary; raises RequestError."""
    if history.compacted is None:
        return
    place, block, param = history.compacted
    if compactor is None:
        raise no_compaction(param)
    sealed = block.encrypted_content or block.signature or ""
    text = await compactor.open(sealed, context, f"{param}.encrypted_content")
    try:
        kept = _read(text)
    except msgspec.MsgspecError:
        raise RequestError(
            f"{param} is of another API's conversation; send it there.",
            param=param,
            code="invalid_compaction_item",
        ) from None
    history.replace_before(place, [summary_message(kept.summary), *kept.tail], param)


def edit_of(request: CountTokensRequest) -> CompactEdit | None:
    """The edit that compacts, if there is one."""
    edits = request.context_management.edits if request.context_management else None
    return next((edit for edit in edits or () if isinstance(edit, CompactEdit)), None)


def threshold_of(edit: CompactEdit, runtime: Runtime) -> int:
    """More tokens than these are compacted."""
    if edit.trigger is not None:
        return edit.trigger.value
    return min(_DEFAULT_TOKENS, runtime.engine.info.max_model_len * 3 // 4)


def has_past(conversation: Conversation) -> bool:
    """Whether there is something to summarize before the turn that is not answered."""
    before, _ = _divided(conversation.messages)
    return any(message.role != "system" for message in before)


async def compacted(
    conversation: Conversation,
    runtime: Runtime,
    context: RequestContext,
    instructions: str | None,
    *,
    is_whole: bool = False,
) -> CompactedTurns:
    """Compact a conversation; `is_whole`: the turn that is not answered, too."""
    if runtime.compactor is None:
        raise no_compaction("compaction" if is_whole else "context_management")
    before, tail = (conversation.messages, ()) if is_whole else _divided(conversation.messages)
    past = replace(conversation, messages=before)
    summary = await runtime.compactor.summarize(past, context, instructions)
    kept = msgspec.json.encode(_Kept(summary.text, [*tail])).decode()
    sealed = await runtime.compactor.seal(kept, context)
    block = {"type": "compaction", "content": summary.text, "encrypted_content": sealed}
    system = [message for message in before if message.role == "system"]
    messages = (*system, summary_message(summary.text), *tail)
    return CompactedTurns(replace(conversation, messages=messages), block, summary.cost)


def _divided(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The messages, and apart from them the last of the user, or the last calls with results."""
    at = len(messages)
    while at and messages[at - 1].role == "tool":
        at -= 1
    if at < len(messages):
        at -= at > 0 and messages[at - 1].role == "assistant"
    else:
        while at and messages[at - 1].role == "user":
            at -= 1
    tail = tuple(messages[at:])
    if len(msgspec.json.encode(tail)) > _MOST_TAIL_BYTES:
        return tuple(messages), ()
    return tuple(messages[:at]), tail


class CompactedMessage(LiveResponse):
    """A message that is one compaction block; `stop_reason` is `compaction`."""

    def __init__(
        self,
        runtime: Runtime,
        request: MessagesRequest,
        write: Callable[[], Awaitable[CompactedTurns]],
    ) -> None:
        super().__init__(runtime)
        self._is_streamed = bool(request.stream)
        self._write = write
        self._has_begun = False
        self._id = f"msg_{runtime.new_id()}"

    async def _respond(self, send: Send) -> None:
        try:
            done = await self._write()
        except Exception as error:
            if not self._has_begun:
                raise
            body = writes_event("error", ended_by(error).anthropic_body())
            await send({"type": "http.response.body", "body": body})
            return
        usage = message_usage(done.cost)
        message = message_of(self._id, self._runtime.model.id, usage)
        ending = {"stop_reason": "compaction", "stop_sequence": None}
        if not self._is_streamed:
            body = msgspec.json.encode(message | {"content": [done.block]} | ending)
            await send_json(send, body)
            return
        await self._begin(send)
        fields = {"delta": ending, "usage": usage.model_dump()}
        body = events_of_block(0, done.block) + writes_event("message_delta", fields)
        body += writes_event("message_stop", {})
        await send({"type": "http.response.body", "body": body})

    async def _begin(self, send: Send) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        message = message_of(self._id, self._runtime.model.id, message_usage())
        body = writes_event("message_start", {"message": message}) + _PING
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _on_idle(self, send: Send) -> None:
        if self._is_streamed:
            await self._begin(send)
            await send({"type": "http.response.body", "body": _PING, "more_body": True})
