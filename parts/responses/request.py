"""ResponseRequest → Draft: what to generate, and the response object at its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from parts.responses.answer.document import encode
from parts.responses.answer.events import OPENAI_NAMES, EventNames
from parts.responses.answer.output import Seal
from parts.responses.answer.pieces import Piece
from parts.responses.compacting.thoughts import seal_of_thoughts
from parts.responses.conversation import (
    History,
    compacted_first,
    conversation_of,
    history_of,
    updated,
)
from parts.responses.items import listed, outputs_of
from parts.responses.schemas.configuration import JSONObjectText, JSONSchemaText
from parts.responses.schemas.request import ContextRequest, ResponseRequest
from parts.responses.store.base import PastRecords, ResponseRecord
from parts.responses.stored import store_of
from parts.responses.tools.offering import check_names, choice_of
from parts.responses.truncation import shortened
from service.answer.plan import Plan
from service.answer.tiers import Tier
from service.api.common.foreign import note_unread
from service.api.common.plan import AnswerSpec, Guidance, plan_of
from service.api.common.prompt import context_bound, counting_bound, render_prompt
from service.errors import RequestError
from service.guide.answer import AnswerFormat, FieldNames
from service.request import Counted, RequestContext
from service.runtime import Runtime

Json = dict[str, Any]

_FIELDS = FieldNames(format="text.format", schema="text.format.schema")
_ECHOED = {"reasoning", "text", "tool_choice", "tools"}
_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseBegun:
    """A response at its beginning: its object, and what is to be kept of it."""

    head: Json  # the response object without its output
    owner: str
    input: Sequence[Json]
    is_stored: bool
    names: EventNames = field(default_factory=lambda: OPENAI_NAMES)  # of its events
    hold: Callable[[ResponseRecord], None] | None = None  # for the next turn of a WebSocket

    @property
    def id(self) -> str:
        response_id: str = self.head["id"]
        return response_id

    def record(self, response: Json, *, is_final: bool) -> ResponseRecord:
        return ResponseRecord(
            id=self.id,
            owner=self.owner,
            response=encode(response),
            input=msgspec.json.encode(self.input),
            is_final=is_final,
            previous_id=self.head["previous_response_id"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft(ResponseBegun):
    """A response that is about to be generated."""

    plan: Plan
    pieces: tuple[Piece, ...] = ()  # that it has already
    cost: Counted | None = None  # of these
    seal: Seal | None = None  # of thoughts, for a client that asked for it
    shows_timings: bool = False  # in the events of its stream
    shows_progress: bool = False


async def draft_response(
    request: ResponseRequest,
    runtime: Runtime,
    context: RequestContext,
    past: PastRecords | None = None,
) -> Draft:
    """The draft of a request; raises RequestError naming the field that cannot be served.

    `past`: where the responses are that it may continue; by default, the store.
    """
    _check_together(request)
    id = f"resp_{runtime.new_id()}"
    # Two thousand items take milliseconds each time: validated above, listed, replayed below.
    await asyncio.sleep(0)
    shown = listed(request.input, id)
    note_unread(context, outputs_of(request.input))
    await asyncio.sleep(0)
    history = await history_of(request, shown, runtime, context, past or store_of(runtime))
    request = updated(request, history)
    history, pieces, cost = await compacted_first(request, history, runtime, context)
    plan = await _plan(request, history, runtime, context)
    tier = plan.for_job().tier if request.background else plan.tier
    begun = await begun_response(request, id, shown, runtime, context, tier)
    own = {name: getattr(begun, name) for name in ("head", "owner", "input", "is_stored")}
    is_sealed = _SEALED in (request.include or ()) and not request.background
    seal = await seal_of_thoughts(runtime, context) if is_sealed else None
    return Draft(
        **own,
        plan=plan,
        pieces=pieces,
        cost=cost,
        seal=seal,
        shows_timings=bool(request.timings_per_token),
        shows_progress=bool(request.return_progress),
    )


async def begun_response(
    request: ResponseRequest,
    id: str,
    shown: Sequence[Json],
    runtime: Runtime,
    context: RequestContext,
    tier: Tier = Tier.DEFAULT,
) -> ResponseBegun:
    """The response before anything of it is written."""
    is_stored = request.store is not False
    is_kept = is_stored and await store_of(runtime).lasts()
    return ResponseBegun(
        head=_head(request, id, runtime, tier, is_kept=is_kept),
        owner=context.tenant,
        input=shown,
        is_stored=is_stored,
    )


async def count_input(request: ContextRequest, runtime: Runtime, context: RequestContext) -> int:
    """The number of tokens of a request's prompt; raises RequestError naming the field."""
    check_names(request)
    shown = listed(request.input, f"resp_{runtime.new_id()}")
    note_unread(context, outputs_of(request.input))
    history = await history_of(request, shown, runtime, context, store_of(runtime))
    conversation, params = await conversation_of(updated(request, history), history, runtime)
    return len(
        await render_prompt(
            runtime.format, conversation, params.__getitem__, counting_bound("input")
        )
    )


def _check_together(request: ResponseRequest) -> None:
    """Refuse combinations of fields that are valid alone."""
    if request.stream_options and not request.stream:
        raise RequestError("stream_options needs stream: true.", param="stream_options")
    window = request.background_options.completion_window if request.background_options else None
    if window in ("2h", "8h") and (request.stream or not request.background):
        raise RequestError(
            f"background_options.completion_window {window!r} needs background: true, unstreamed.",
            param="background_options.completion_window",
        )
    if request.background and request.store is False:
        raise RequestError("background: true needs store: true (the default).", param="background")
    check_names(request)


async def _plan(
    request: ResponseRequest, history: History, runtime: Runtime, context: RequestContext
) -> Plan:
    conversation, params = await conversation_of(request, history, runtime)
    offering = history.offering
    info = runtime.engine.info
    asked = request.max_output_tokens
    if request.truncation == "auto":
        token_ids = await shortened(runtime.format, conversation, params, info, asked)
    else:
        bound = context_bound(info, "input")
        token_ids = await render_prompt(runtime.format, conversation, params.__getitem__, bound)
    spec = AnswerSpec(
        request,
        asked,
        Guidance(
            choice_of(request, offering), _format(request), _FIELDS, request.thinking_token_budget
        ),
        offering.tools,
        offering.builtins,
        shows_calls=True,
        tool_types=offering.types,
        stop=request.stop,
        num_logprobs=_num_logprobs(request),
        max_calls=1 if request.parallel_tool_calls is False else None,
    )
    return await plan_of(spec, [token_ids], runtime, context)


def _num_logprobs(request: ResponseRequest) -> int | None:
    if request.top_logprobs is None and _LOGPROBS not in (request.include or ()):
        return None
    return request.top_logprobs or 0


def _format(request: ContextRequest) -> AnswerFormat:
    match request.text.format if request.text else None:
        case JSONObjectText():
            return AnswerFormat("json_object")
        case JSONSchemaText(schema_=schema, strict=strict):
            return AnswerFormat("json_schema", schema, widens=not strict)
        case _:
            return AnswerFormat()


def _head(
    request: ResponseRequest, id: str, runtime: Runtime, tier: Tier, *, is_kept: bool
) -> Json:
    """The response object before anything is written; defaults are spelt out."""
    given = request.model_dump(include=_ECHOED, by_alias=True, exclude_unset=True)
    reasoning, text = given.get("reasoning") or {}, given.get("text") or {}
    given_t = request.temperature
    return {
        "id": id,
        "object": "response",
        "created_at": int(runtime.clock()),
        "status": "queued" if request.background else "in_progress",
        "background": bool(request.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": runtime.model.id,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        **({"conversation": {"id": kept_id}} if (kept_id := request.conversation_id) else {}),
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.get("effort") or "medium",
            "summary": reasoning.get("summary"),
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": tier,
        "store": is_kept,
        "temperature": runtime.model.temperature if given_t is None else given_t,
        "text": {
            "format": text.get("format") or {"type": "text"},
            "verbosity": text.get("verbosity") or "medium",
        },
        "tool_choice": given.get("tool_choice") or "auto",
        "tools": [_shown_tool(tool) for tool in given.get("tools") or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
    }


def _shown_tool(tool: Json) -> Json:
    if tool["type"] == "custom":
        return {"format": {"type": "text"}, **tool}
    if tool["type"] != "function":
        return tool
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": bool(tool.get("strict")),
    }
