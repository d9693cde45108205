"""ChatRequest → Plan: what the fields mean, once their types are right."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from engines.base import EngineInfo, SamplingParams
from service.errors import RequestError
from service.harmony.errors import UnknownToolCall
from service.harmony.render import render
from service.harmony.types import Conversation, Message, ReasoningEffort, Tool, ToolCall
from service.plan import Plan
from service.runtime import Runtime
from service.schemas.chat import ChatRequest, FunctionTool
from service.schemas.messages import AssistantMessage, ChatMessage, ToolMessage, text_of

# gpt-oss knows three levels; the others of OpenAI's schema mean the nearest of them.
EFFORTS: Mapping[str | None, ReasoningEffort] = {
    None: "medium",
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}

# Encoding a longer prompt in this thread would hold up every stream of this process.
_LONG_PROMPT_CHARS = 16_384


async def plan_chat(request: ChatRequest, runtime: Runtime, request_id: str) -> Plan:
    """Render the prompt and settle the limits; raises RequestError naming the field."""
    if request.model != runtime.model.id:
        raise RequestError(
            f"The model {request.model!r} is not served here; use {runtime.model.id!r}.",
            param="model",
            code="model_not_found",
            status=404,
        )
    _check_together(request)
    info = runtime.engine.info
    conversation = to_conversation(request, current_date(runtime.clock()))
    prompt_token_ids = await _render(conversation)
    max_tokens = _max_tokens(request, len(prompt_token_ids), info.max_model_len)
    return Plan(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        sampling=_sampling(request, max_tokens, info),
        tool_names=frozenset(tool.name for tool in conversation.tools),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        num_choices=request.n or 1,
        max_calls=1 if request.parallel_tool_calls is False else None,
        has_reasoning=request.include_reasoning,
    )


def current_date(now_s: float) -> str:
    """UTC, so that all workers and replicas render the same prompt."""
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%d")


def to_conversation(request: ChatRequest, date: str) -> Conversation:
    """The request's messages and tools as the renderer takes them."""
    tools = request.tools or []
    _check_names(tools)
    return Conversation(
        messages=tuple(_message(message, i) for i, message in enumerate(request.messages)),
        current_date=date,
        tools=() if request.tool_choice == "none" else tuple(_tool(tool) for tool in tools),
        reasoning_effort=EFFORTS[request.reasoning_effort],
    )


async def _render(conversation: Conversation) -> tuple[int, ...]:
    num_chars = sum(len(m.content) + len(m.reasoning) for m in conversation.messages)
    try:
        if num_chars > _LONG_PROMPT_CHARS:
            return tuple(await asyncio.to_thread(render, conversation))
        return tuple(render(conversation))
    except UnknownToolCall as error:
        param = f"messages[{error.message_index}].tool_call_id"
        raise RequestError(str(error), param=param, code="unknown_tool_call") from error


def _check_together(request: ChatRequest) -> None:
    """Fields that are right alone and wrong together."""
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
    if request.stream_options and not request.stream:
        raise RequestError("stream_options needs stream: true.", param="stream_options")
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise RequestError(
            "max_tokens and max_completion_tokens differ; give max_completion_tokens alone.",
            param="max_tokens",
        )


def _check_names(tools: list[FunctionTool]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.function.name
        if name in seen:
            raise RequestError(
                f"tools[{index}].function.name repeats {name!r}; give each tool its own name.",
                param=f"tools[{index}].function.name",
            )
        seen.add(name)


def _tool(tool: FunctionTool) -> Tool:
    function = tool.function
    return Tool(function.name, function.description or "", function.parameters)


def _message(message: ChatMessage, index: int) -> Message:
    content = text_of(message.content)
    if isinstance(message, ToolMessage):
        return Message("tool", content, tool_call_id=message.tool_call_id)
    if not isinstance(message, AssistantMessage):
        return Message(message.role, content)
    return Message(
        "assistant",
        content + (message.refusal or ""),
        reasoning=_reasoning(message, index),
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        ),
    )


def _reasoning(message: AssistantMessage, index: int) -> str:
    given = {message.reasoning, message.reasoning_content} - {None, ""}
    if len(given) > 1:
        raise RequestError(
            f"messages[{index}] has different texts in reasoning and reasoning_content, which "
            "mean the same; give one.",
            param=f"messages[{index}].reasoning_content",
        )
    return given.pop() or "" if given else ""


def _max_tokens(request: ChatRequest, num_prompt: int, max_model_len: int) -> int:
    """The client's limit, or all the context that the prompt leaves."""
    asked = request.max_completion_tokens or request.max_tokens
    room = max_model_len - num_prompt
    if room >= 1 and (asked is None or asked <= room):
        return room if asked is None else asked
    limit = "max_completion_tokens" if request.max_completion_tokens else "max_tokens"
    wanted = f" and {asked} for the answer ({limit})" if asked else ""
    raise RequestError(
        f"The context holds {max_model_len} tokens, but {num_prompt} for the prompt{wanted} "
        "were asked for; shorten the messages or ask for less.",
        param="messages" if room < 1 else limit,
        code="context_length_exceeded",
    )


def _sampling(request: ChatRequest, max_tokens: int, info: EngineInfo) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(request.temperature, 1.0),
        top_p=_or(request.top_p, 1.0),
        top_k=max(request.top_k or 0, 0),
        min_p=_or(request.min_p, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        logit_bias=_logit_bias(request.logit_bias or {}, info.vocab_size),
        seed=request.seed,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise RequestError(
                f"logit_bias has the key {key[:40]!r}; keys are token ids from 0 to "
                f"{vocab_size - 1} as strings.",
                param="logit_bias",
            )
    return {int(key): bias for key, bias in biases.items()}
