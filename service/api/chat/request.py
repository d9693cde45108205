"""ChatRequest → Plan: what the fields mean, once their types are right."""

from __future__ import annotations

from service.answer.hosted import NO_OFFER, Offer
from service.answer.plan import Plan
from service.api.chat.guide import chat_grammar, described_format
from service.api.chat.message_schema import AssistantMessage, ChatMessage, ToolMessage, text_of
from service.api.chat.message_schema import CustomToolCall as CalledCustom
from service.api.chat.message_schema import ToolCall as CalledFunction
from service.api.chat.schema import BuiltinTool, ChatRequest, CustomTool, Effort, FunctionTool
from service.api.chat.tools import chat_offer, check_names
from service.api.common.custom_tools import custom_names, free_text
from service.api.common.prompt import (
    EFFORTS,
    answer_limit,
    check_model,
    context_bound,
    current_date,
    render_prompt,
    sampling_of,
    stop_ids,
)
from service.errors import RequestError
from service.harmony.types import Conversation, Message, Tool, ToolCall
from service.request.context import RequestContext
from service.runtime import Runtime


async def plan_chat(request: ChatRequest, runtime: Runtime, context: RequestContext) -> Plan:
    """Render the prompt and settle the limits; raises RequestError naming the field."""
    check_model(request.model, runtime, context)
    _check_together(request)
    info = runtime.engine.info
    offer = chat_offer(request, runtime.toolbox)
    conversation = to_conversation(request, current_date(runtime.clock()), offer)
    grammar = await chat_grammar(request, conversation.tools, offer)
    prompt_token_ids = await render_prompt(
        conversation, _tool_call_param, context_bound(info, "messages")
    )
    max_tokens = _max_tokens(request, len(prompt_token_ids), info.max_model_len)
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return Plan(
        context=context,
        prompt_token_ids=prompt_token_ids,
        sampling=sampling_of(request, max_tokens, info, num_logprobs),
        priority=request.priority,
        tool_names=frozenset(tool.name for tool in conversation.tools),
        custom_names=custom_names(conversation.tools),
        builtins=offer.builtins,
        hosted=grammar.hosted,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        num_choices=request.n or 1,
        max_calls=1 if request.parallel_tool_calls is False else None,
        has_reasoning=request.include_reasoning,
        grammar=grammar.tree,
        grammar_param=grammar.param,
        stop_token_ids=stop_ids(
            request, is_guided=grammar.tree is not None, is_hosted=grammar.hosted is not None
        ),
    )


def to_conversation(request: ChatRequest, date: str, offer: Offer = NO_OFFER) -> Conversation:
    """The request's messages and tools as the renderer takes them."""
    check_names(request.tools or ())
    tools = tuple(
        _tool(tool, f"tools[{index}]")
        for index, tool in enumerate(request.tools or ())
        if not isinstance(tool, BuiltinTool)
    )
    return Conversation(
        messages=tuple(_message(message, i) for i, message in enumerate(request.messages)),
        current_date=date,
        tools=() if request.tool_choice == "none" else tools,
        reasoning_effort=EFFORTS[_effort(request)],
        response_format=described_format(request),
        builtins=offer.tools,
    )


def _effort(request: ChatRequest) -> Effort | None:
    """One value under the three names that clients have for it."""
    reasoning, template = request.reasoning, request.chat_template_kwargs
    efforts = {
        "reasoning_effort": request.reasoning_effort,
        "reasoning.effort": reasoning.effort if reasoning else None,
        "chat_template_kwargs.reasoning_effort": template.reasoning_effort if template else None,
    }
    given = {name: effort for name, effort in efforts.items() if effort is not None}
    if len({*given.values()}) > 1:
        names = " and ".join(given)
        raise RequestError(f"{names} differ; give reasoning_effort alone.", param=[*given][-1])
    return next(iter(given.values()), None)


def _tool_call_param(index: int) -> str:
    return f"messages[{index}].tool_call_id"


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


def _tool(tool: FunctionTool | CustomTool, field: str) -> Tool:
    if isinstance(tool, CustomTool):
        custom = tool.custom
        text, place = free_text(custom.format), f"{field}.custom.format.grammar.definition"
        return Tool(custom.name, custom.description or "", free_text=text, field=place)
    function = tool.function
    description = function.description or ""
    place = f"{field}.function.parameters"
    return Tool(function.name, description, function.parameters, function.strict, field=place)


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
        tool_calls=tuple(_call(call) for call in message.tool_calls or ()),
    )


def _call(call: CalledFunction | CalledCustom) -> ToolCall:
    if isinstance(call, CalledCustom):
        return ToolCall(call.id, call.custom.name, call.custom.input, is_custom=True)
    return ToolCall(call.id, call.function.name, call.function.arguments)


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
    return answer_limit(
        request.max_completion_tokens or request.max_tokens,
        num_prompt,
        max_model_len,
        prompt_param="messages",
        limit_param="max_completion_tokens" if request.max_completion_tokens else "max_tokens",
    )
