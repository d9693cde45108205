"""ResponseRequest → Draft: what to generate, and the response object at its beginning."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from service.api.prompt import (
    EFFORTS,
    answer_limit,
    check_model,
    context_bound,
    current_date,
    render_prompt,
    sampling_of,
    stop_ids,
)
from service.builtin_tools import BUILTIN_OF, Offer, offer_of
from service.errors import RequestError
from service.guide import Fields, TextFormat, answer_grammar
from service.guide import ToolChoice as GuideChoice
from service.harmony.types import Conversation, Message, ResponseFormat, Tool, qualified_name
from service.plan import Plan
from service.responses.document import encode
from service.responses.items import listed, replay
from service.responses.past import past_groups, resolved
from service.responses.store import Record
from service.responses.truncation import shortened
from service.runtime import Runtime
from service.schemas.custom_tools import custom_names, free_text
from service.schemas.responses import (
    AllowedTools,
    CustomTool,
    FunctionTool,
    JsonObject,
    JsonSchema,
    NamedFunction,
    NamedNamespace,
    NamespaceTool,
    ResponseRequest,
)

Json = dict[str, Any]

_FIELDS = Fields(
    format="text.format", schema="text.format.schema", tool_schema="tools[{index}].parameters"
)
_ECHOED = {"reasoning", "text", "tool_choice", "tools"}
_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class Draft:
    """A response that is about to be generated."""

    plan: Plan
    head: Json  # the response object without its output
    owner: str
    input: Sequence[Json]
    is_stored: bool

    @property
    def id(self) -> str:
        response_id: str = self.head["id"]
        return response_id

    def record(self, response: Json, *, is_final: bool) -> Record:
        """What the store keeps of it."""
        return Record(
            id=self.id,
            owner=self.owner,
            response=encode(response),
            input=msgspec.json.encode(self.input),
            is_final=is_final,
            previous_id=self.head["previous_response_id"],
        )


async def draft_response(
    request: ResponseRequest, runtime: Runtime, request_id: str, owner: str
) -> Draft:
    """Render the prompt and settle the limits; raises RequestError naming the field."""
    check_model(request.model, runtime)
    _check_together(request)
    id = f"resp_{runtime.new_id()}"
    shown = listed(request.input, id)
    offer = _offer(request, runtime)
    conversation, params = await _conversation(request, shown, offer, runtime, owner)
    plan = await _plan(request, conversation, params, offer, runtime, request_id)
    is_stored = request.store is not False
    is_kept = is_stored and await runtime.responses.lasts()
    head = _head(request, id, int(runtime.clock()), is_kept=is_kept)
    return Draft(plan, head, owner, shown, is_stored)


def _check_together(request: ResponseRequest) -> None:
    """Fields that are right alone and wrong together."""
    if request.stream_options and not request.stream:
        raise RequestError("stream_options needs stream: true.", param="stream_options")
    if request.background and request.store is False:
        raise RequestError("background needs store: true, or store left out.", param="background")
    seen: set[str] = set()
    for param, name in _names(request):
        if name in seen:
            message = f"{param} repeats {name!r}; give each tool its own name."
            raise RequestError(message, param=param)
        seen.add(name)


def _names(request: ResponseRequest) -> Iterator[tuple[str, str]]:
    """The qualified name of each tool that the client runs, behind the field that has it."""
    for index, tool in enumerate(request.tools or ()):
        if isinstance(tool, NamespaceTool):
            for place, inner in enumerate(tool.tools):
                name = qualified_name(inner.name, tool.name)
                yield f"tools[{index}].tools[{place}].name", name
        elif isinstance(tool, FunctionTool | CustomTool):
            yield f"tools[{index}].name", tool.name


def _offer(request: ResponseRequest, runtime: Runtime) -> Offer:
    """The built-in tools; one that is not connected is not offered."""
    wanted = {BUILTIN_OF.get(tool.type) for tool in request.tools or ()} - {None}
    return offer_of(
        runtime.toolbox,
        [name for name in wanted if name],
        is_hidden=request.tool_choice == "none",
        max_calls=request.max_tool_calls,
    )


async def _conversation(
    request: ResponseRequest, shown: Sequence[Json], offer: Offer, runtime: Runtime, owner: str
) -> tuple[Conversation, list[str]]:
    """The prompt's messages, and for each the field it came from."""
    past = await past_groups(runtime.responses, request.previous_response_id, owner)
    given = await resolved(runtime.responses, shown, owner)
    messages, params = replay([*past, given])
    if request.instructions:
        messages.insert(0, Message("system", request.instructions))
        params.insert(0, "instructions")
    conversation = Conversation(
        messages=tuple(messages),
        current_date=current_date(runtime.clock()),
        tools=() if request.tool_choice == "none" else _tools(request),
        reasoning_effort=EFFORTS[request.reasoning.effort if request.reasoning else None],
        response_format=_described_format(request),
        namespaces=_namespaces(request),
        builtins=offer.tools,
    )
    return conversation, params


def _tools(request: ResponseRequest) -> tuple[Tool, ...]:
    """What the client runs; built-in tools are no part of the developer message."""
    tools: list[Tool] = []
    for tool in request.tools or ():
        if isinstance(tool, NamespaceTool):
            tools += [_tool(inner, tool.name) for inner in tool.tools]
        elif isinstance(tool, FunctionTool | CustomTool):
            tools.append(_tool(tool))
    return tuple(tools)


def _tool(tool: FunctionTool | CustomTool, namespace: str | None = None) -> Tool:
    name, description = qualified_name(tool.name, namespace), tool.description or ""
    if isinstance(tool, CustomTool):
        return Tool(name, description, free_text=free_text(tool.format))
    return Tool(name, description, tool.parameters, tool.strict)


def _namespaces(request: ResponseRequest) -> dict[str, str]:
    """Their descriptions."""
    tools = [tool for tool in request.tools or () if isinstance(tool, NamespaceTool)]
    return {tool.name: tool.description or "" for tool in tools}


async def _plan(
    request: ResponseRequest,
    conversation: Conversation,
    params: Sequence[str],
    offer: Offer,
    runtime: Runtime,
    request_id: str,
) -> Plan:
    info = runtime.engine.info
    asked = request.max_output_tokens
    if request.truncation == "auto":
        token_ids = await shortened(conversation, params, info, asked)
    else:
        bound = context_bound(info, "input")
        token_ids = await render_prompt(conversation, params.__getitem__, bound)
    max_tokens = answer_limit(
        asked,
        len(token_ids),
        info.max_model_len,
        prompt_param="input",
        limit_param="max_output_tokens",
    )
    format, choice = _format(request), _choice(request)
    grammar_of = functools.partial(
        answer_grammar,
        _tools(request),
        format=format,
        max_reasoning_tokens=request.thinking_token_budget,
        builtins=offer.recipients,
        fields=_FIELDS,
    )
    grammar = grammar_of(choice)
    param = "tools" if format.kind == "text" else _FIELDS.format
    return Plan(
        request_id=request_id,
        prompt_token_ids=token_ids,
        sampling=sampling_of(request, max_tokens, info, _num_logprobs(request)),
        priority=request.priority,
        tool_names=frozenset(tool.name for tool in conversation.tools),
        custom_names=custom_names(conversation.tools),
        builtins=offer.builtins,
        hosted=offer.hosted(choice, grammar_of, is_shown=True),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        max_calls=1 if request.parallel_tool_calls is False else None,
        grammar=grammar,
        grammar_param=param if grammar else None,
        stop_token_ids=stop_ids(request, is_guided=bool(grammar), is_hosted=bool(offer.tools)),
    )


def _num_logprobs(request: ResponseRequest) -> int | None:
    if request.top_logprobs is None and _LOGPROBS not in (request.include or ()):
        return None
    return request.top_logprobs or 0


def _choice(request: ResponseRequest) -> GuideChoice:
    match request.tool_choice:
        case NamedFunction(name=name, namespace=namespace):
            return GuideChoice.named(qualified_name(name, namespace))
        case AllowedTools(mode=mode, tools=tools):
            return GuideChoice(mode, frozenset(_allowed(tools, request)))
        case "none" | "required" as mode:
            return GuideChoice(mode)
        case _:
            return GuideChoice()


def _allowed(
    named: Iterable[NamedFunction | NamedNamespace], request: ResponseRequest
) -> Iterator[str]:
    """The qualified names of what an `allowed_tools` names."""
    for one in named:
        if isinstance(one, NamedFunction):
            yield qualified_name(one.name, one.namespace)
        else:
            inside = [tool.name for tool in _tools(request) if tool.namespace == one.name]
            yield from inside or [f"{one.name}.*"]  # what is not offered is refused by its name


def _format(request: ResponseRequest) -> TextFormat:
    match request.text.format if request.text else None:
        case JsonObject():
            return TextFormat("json_object")
        case JsonSchema(schema_=schema):
            return TextFormat("json_schema", schema)
        case _:
            return TextFormat()


def _described_format(request: ResponseRequest) -> ResponseFormat | None:
    match request.text.format if request.text else None:
        case JsonSchema(schema_=schema, name=name, description=description):
            return ResponseFormat(schema, name, description or "")
        case _:
            return None


def _head(request: ResponseRequest, id: str, created_at: int, *, is_kept: bool) -> Json:
    """The response object before anything is written; defaults are spelt out."""
    given = request.model_dump(include=_ECHOED, by_alias=True, exclude_unset=True)
    reasoning, text = given.get("reasoning") or {}, given.get("text") or {}
    return {
        "id": id,
        "object": "response",
        "created_at": created_at,
        "status": "queued" if request.background else "in_progress",
        "background": bool(request.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.get("effort") or "medium",
            "summary": reasoning.get("summary"),
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": is_kept,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
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
