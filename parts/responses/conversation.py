"""Items → the conversation that a prompt is made of, compacted where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from parts.responses.answer.pieces import Piece
from parts.responses.compacting.history import divided, is_empty, opened, replaced, sealable
from parts.responses.compacting.thoughts import with_thoughts
from parts.responses.conversations.log import KeptConversation, read
from parts.responses.items import replay
from parts.responses.past import Groups, conversation_groups
from parts.responses.schemas.configuration import ConfigurationUpdate, JSONSchemaText
from parts.responses.schemas.request import (
    ContextRequest,
    Reasoning,
    ResponseRequest,
    TextConfig,
)
from parts.responses.store.base import PastRecords
from parts.responses.tools.offering import Offering, offering_of
from service.api.common.prompt import context_bound, current_date, render_prompt
from service.compaction import Summary, no_compaction
from service.conversation import Conversation, DeltaKind, Message, ResponseFormat
from service.errors import RequestError
from service.request import Counted, RequestContext
from service.runtime import Runtime
from service.sealing import Seals

Json = dict[str, Any]
R = TypeVar("R", bound=ContextRequest)

_UPDATE: Final = "configuration_update"


@dataclass(frozen=True, slots=True)
class History:
    """What a request is about, before it is a prompt: items, and the tools that they bring."""

    groups: Groups
    offering: Offering
    updates: tuple[ConfigurationUpdate, ...] = ()  # in order


async def history_of(
    request: ContextRequest,
    shown: Sequence[Json],
    runtime: Runtime,
    context: RequestContext,
    past: PastRecords,
) -> History:
    """The items of a request and of what it continues, compacted ones opened."""
    continued: str | KeptConversation | None = request.previous_response_id
    if (id := request.conversation_id) is not None:
        if continued is not None:
            raise RequestError(
                "conversation cannot be combined with previous_response_id; send one of them.",
                param="conversation",
            )
        continued = await read(runtime, id, context.tenant, "conversation")
    groups = await conversation_groups(past, continued, shown, context.tenant)
    offering = await offering_of(request, groups, runtime)
    groups, updates = _without_updates(groups)
    groups = await opened(groups, runtime.compactor, context)
    return History(await with_thoughts(groups, runtime.of(Seals), context), offering, updates)


def _without_updates(groups: Groups) -> tuple[Groups, tuple[ConfigurationUpdate, ...]]:
    updates = tuple(
        ConfigurationUpdate.model_validate(entry.item)
        for group in groups
        for entry in group
        if entry.item["type"] == _UPDATE
    )
    if not updates:
        return groups, ()
    return [[e for e in group if e.item["type"] != _UPDATE] for group in groups], updates


def updated(request: R, history: History) -> R:
    """The request with the settings that the conversation has by now."""
    changes: dict[str, Any] = {}
    for update in history.updates:
        if update.reasoning is not None:
            reasoning = request.reasoning or Reasoning()
            effort = {"effort": update.reasoning.effort}
            changes["reasoning"] = reasoning.model_copy(update=effort)
        if update.text is not None:
            text = request.text or TextConfig()
            changes["text"] = text.model_copy(update={"format": update.text.format})
    return request.model_copy(update=changes) if changes else request


async def conversation_of(
    request: ContextRequest, history: History, runtime: Runtime
) -> tuple[Conversation, list[str]]:
    """The prompt's messages and tools, and for each message the field it came from."""
    messages, params = await replay(history.groups)
    if request.instructions:
        messages.insert(0, Message("system", request.instructions))
        params.insert(0, "instructions")
    effort = request.reasoning.effort if request.reasoning else None
    offering = history.offering
    conversation = Conversation(
        messages=tuple(messages),
        current_date=current_date(runtime.clock()),
        tools=offering.tools,
        reasoning_effort=effort,
        response_format=_described_format(request),
        namespaces=offering.namespaces,
        builtins=offering.builtins.tools,
        verbosity=(request.text.verbosity if request.text else None) or "medium",
    )
    return conversation, params


async def compact(
    request: ContextRequest, history: History, runtime: Runtime, context: RequestContext
) -> tuple[History, Piece, Summary]:
    """The history as an answer continues it, the item for what is left out of it, and
    the summary; raises RequestError."""
    if runtime.compactor is None:
        raise no_compaction("input")
    before, tail = divided(history.groups)
    if is_empty(before):
        before, tail = history.groups, []
    conversation, _ = await conversation_of(request, replace(history, groups=before), runtime)
    summary = await runtime.compactor.summarize(conversation, context)
    sealed = await runtime.compactor.seal(sealable(summary.text, tail), context)
    groups = replaced(before, summary.text, tail)
    return replace(history, groups=groups), Piece(DeltaKind.COMPACTION, sealed), summary


async def compacted_first(
    request: ResponseRequest, history: History, runtime: Runtime, context: RequestContext
) -> tuple[History, tuple[Piece, ...], Counted | None]:
    """The history, compacted where the request asks for that and its prompt is long."""
    if not request.context_management:
        return history, (), None
    if request.background:
        raise RequestError(
            "context_management cannot be combined with background: true; send one of them.",
            param="context_management",
        )
    threshold = request.context_management[0].compact_threshold
    most = threshold or runtime.engine.info.max_model_len * 3 // 4
    conversation, params = await conversation_of(request, history, runtime)
    bound = replace(context_bound(runtime.engine.info, "input"), max_tokens=most, counts_on=False)
    try:
        await render_prompt(runtime.format, conversation, params.__getitem__, bound)
    except RequestError as error:
        if error.code != "context_length_exceeded":
            raise
        if is_empty(divided(history.groups)[0]):
            return history, (), None  # one question that is too long
        shorter, piece, summary = await compact(request, history, runtime, context)
        return shorter, (piece,), summary.cost
    return history, (), None


def _described_format(request: ContextRequest) -> ResponseFormat | None:
    match request.text.format if request.text else None:
        case JSONSchemaText(schema_=schema, name=name, description=description):
            return ResponseFormat(schema, name, description or "")
        case _:
            return None
