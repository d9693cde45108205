"""ResponseRequest → Draft: what to generate, and the response object at its beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from parts.responses.answer.document import encode
from parts.responses.answer.events import OPENAI_NAMES, EventNames
from parts.responses.items import listed, outputs_of, replay
from parts.responses.past import conversation_groups
from parts.responses.schemas.request import (
    ContextRequest,
    JSONObjectText,
    JSONSchemaText,
    ResponseRequest,
)
from parts.responses.store.base import PastRecords, ResponseRecord
from parts.responses.stored import store_of
from parts.responses.tools.offering import Offering, check_names, choice_of, offering_of
from parts.responses.truncation import shortened
from service.answer.plan import Plan
from service.api.common.foreign import note_unread
from service.api.common.plan import AnswerSpec, Guidance, plan_of
from service.api.common.prompt import (
    check_model,
    context_bound,
    counting_bound,
    current_date,
    render_prompt,
)
from service.conversation import Conversation, Message, ResponseFormat
from service.errors import RequestError
from service.guide.answer import AnswerFormat, FieldNames
from service.request import RequestContext
from service.runtime import Runtime

Json = dict[str, Any]

_FIELDS = FieldNames(format="text.format", schema="text.format.schema")
_ECHOED = {"reasoning", "text", "tool_choice", "tools"}
_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class Draft:
    """A response that is about to be generated: its plan and its object at the beginning."""

    plan: Plan
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


async def draft_response(
    request: ResponseRequest,
    runtime: Runtime,
    context: RequestContext,
    past: PastRecords | None = None,
) -> Draft:
    """The draft of a request; raises RequestError naming the field that cannot be served.

    `past`: where the responses are that it may continue; by default, the store.
    """
    check_model(request.model, runtime, context)
    _check_together(request)
    id = f"resp_{runtime.new_id()}"
    # Two thousand items take milliseconds each time: validated above, listed, replayed below.
    await asyncio.sleep(0)
    shown = listed(request.input, id)
    note_unread(context, outputs_of(request.input))
    await asyncio.sleep(0)
    offering, conversation, params = await _conversation(
        request, shown, runtime, context.tenant, past or store_of(runtime)
    )
    plan = await _plan(request, offering, conversation, params, runtime, context)
    is_stored = request.store is not False
    is_kept = is_stored and await store_of(runtime).lasts()
    head = _head(request, id, runtime, plan, is_kept=is_kept)
    return Draft(plan, head, context.tenant, shown, is_stored)


async def count_input(request: ContextRequest, runtime: Runtime, context: RequestContext) -> int:
    """The number of tokens of a request's prompt; raises RequestError naming the field."""
    if request.model is not None:
        check_model(request.model, runtime, context)
    check_names(request)
    shown = listed(request.input, f"resp_{runtime.new_id()}")
    note_unread(context, outputs_of(request.input))
    _, conversation, params = await _conversation(
        request, shown, runtime, context.tenant, store_of(runtime)
    )
    return len(
        await render_prompt(
            runtime.format, conversation, params.__getitem__, counting_bound("input")
        )
    )


def _check_together(request: ResponseRequest) -> None:
    """Refuse combinations of fields that are valid alone."""
    if request.stream_options and not request.stream:
        raise RequestError("stream_options needs stream: true.", param="stream_options")
    if request.background and request.store is False:
        raise RequestError("background: true needs store: true (the default).", param="background")
    check_names(request)


async def _conversation(
    request: ContextRequest,
    shown: Sequence[Json],
    runtime: Runtime,
    owner: str,
    past: PastRecords,
) -> tuple[Offering, Conversation, list[str]]:
    """The tools, the prompt's messages, and for each of these the field it came from."""
    groups = await conversation_groups(past, request.previous_response_id, shown, owner)
    offering = await offering_of(request, groups, runtime)
    messages, params = await replay(groups)
    if request.instructions:
        messages.insert(0, Message("system", request.instructions))
        params.insert(0, "instructions")
    effort = request.reasoning.effort if request.reasoning else None
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
    return offering, conversation, params


async def _plan(
    request: ResponseRequest,
    offering: Offering,
    conversation: Conversation,
    params: Sequence[str],
    runtime: Runtime,
    context: RequestContext,
) -> Plan:
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


def _described_format(request: ContextRequest) -> ResponseFormat | None:
    match request.text.format if request.text else None:
        case JSONSchemaText(schema_=schema, name=name, description=description):
            return ResponseFormat(schema, name, description or "")
        case _:
            return None


def _head(
    request: ResponseRequest, id: str, runtime: Runtime, plan: Plan, *, is_kept: bool
) -> Json:
    """The response object before anything is written; defaults are spelt out."""
    given = request.model_dump(include=_ECHOED, by_alias=True, exclude_unset=True)
    reasoning, text = given.get("reasoning") or {}, given.get("text") or {}
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
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.get("effort") or "medium",
            "summary": reasoning.get("summary"),
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": plan.for_job().tier if request.background else plan.tier,
        "store": is_kept,
        "temperature": plan.sampling.temperature,
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
