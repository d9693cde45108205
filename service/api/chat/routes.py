"""POST /v1/chat/completions: the route, and the plan that its fields mean."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from fastapi import Response

from auth.base import Scope
from service.answer.generation import Generation
from service.answer.plan import BUILTIN_OF, NO_OFFERED_TOOLS, OfferedTools, Plan, offered_tools
from service.api.chat.answer import ChatAnswer, ChatChunks, ChatCompletion
from service.api.chat.schema import (
    AssistantMessage,
    BuiltinTool,
    ChatCustomTool,
    ChatFunctionTool,
    ChatMessage,
    ChatRequest,
    ToolMessage,
    text_of,
)
from service.api.chat.schema import ChatCustomToolCall as CalledCustom
from service.api.chat.schema import Tool as GivenTool
from service.api.chat.schema import ToolCall as CalledFunction
from service.api.common.answer import StreamedUsage, prompt_logprobs_not_streamed
from service.api.common.foreign import note_unread
from service.api.common.free_text import free_text
from service.api.common.guidance_schema import (
    AllowedToolsChoice,
    GivenToolChoice,
    JSONSchemaFormat,
    NamedCustomTool,
    NamedTool,
)
from service.api.common.operations import event_stream, json_router
from service.api.common.plan import AnswerSpec, Guidance, format_of, plan_of
from service.api.common.prompt import (
    context_bound,
    current_date,
    render_prompt,
    runtime_for,
)
from service.conversation import Conversation, Message, ReasoningEffort, Tool, ToolCall
from service.conversation import ResponseFormat as ResponseFormatNote
from service.errors import RequestError
from service.guide.answer import ToolChoice
from service.http.paths import PathRow, RouteGroup, Routes
from service.http.streaming import EventStream, WholeAnswer
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime
from service.tools import Toolbox
from service.work import by_number, rest

router = json_router("Chat completions")


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    responses=event_stream("`chat.completion.chunk` objects, then `[DONE]`."),
)
async def create_chat_completion(
    body: ChatRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Answer a conversation; with `stream` as server-sent events ending in `[DONE]`."""
    runtime.lifecycle.check_accepting()
    runtime = runtime_for(body.model, runtime, context)
    plan = await plan_chat(body, runtime, context)
    generation = Generation(runtime.engine, plan, may_be_told=bool(body.stream))
    if body.stream:
        return _streamed(runtime, generation, StreamedUsage.asked(body.stream_options))
    return _whole(runtime, generation)


def _streamed(runtime: Runtime, generation: Generation, usage: StreamedUsage) -> EventStream:
    id = f"chatcmpl-{runtime.new_id()}"
    runtime.answers.add(id, generation)
    encoder = ChatChunks(
        generation,
        id=id,
        model=runtime.model.id,
        created=int(runtime.clock()),
        usage=usage,
        new_call_id=functools.partial(_call_id, runtime),
    )
    return EventStream(runtime, generation, encoder)


def _whole(runtime: Runtime, generation: Generation) -> WholeAnswer:
    id, created = f"chatcmpl-{runtime.new_id()}", int(runtime.clock())
    answer = ChatAnswer(generation, functools.partial(_call_id, runtime))

    body = functools.partial(answer.body, id=id, model=runtime.model.id, created=created)
    return WholeAnswer(runtime, generation, answer.add, body)


def _call_id(runtime: Runtime) -> str:
    return f"call_{runtime.new_id()[-24:]}"


async def plan_chat(
    request: ChatRequest, runtime: Runtime, context: RequestContext, *, opens_answer: bool = True
) -> Plan:
    """The plan of a chat request; raises RequestError naming the field that cannot be served."""
    _check_together(request)
    info = runtime.engine.info
    offered = chat_tools(request, runtime.toolbox)
    date = current_date(runtime.clock())
    conversation = await to_conversation(request, date, offered, opens_answer=opens_answer)
    note_unread(context, (message.content for message in request.messages))
    format, fields = format_of(request.response_format, request.structured_outputs)
    choice = _tool_choice(request.tool_choice)
    spec = AnswerSpec(
        request,
        request.max_completion_tokens or request.max_tokens,
        Guidance(choice, format, fields, request.thinking_token_budget),
        conversation.tools,
        offered,
        stop=request.stop,
        num_choices=request.n or 1,
        num_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        num_prompt_logprobs=request.prompt_logprobs,
        max_calls=1 if request.parallel_tool_calls is False else None,
        has_reasoning=request.include_reasoning is not False,
        keeps_ids=bool(request.return_token_ids),
        keeps_logprobs=bool(request.return_token_logprobs),
        begun_ids=tuple(request.continue_token_ids or ()),
    )
    bound = context_bound(info, "messages")
    token_ids = await render_prompt(runtime.format, conversation, _tool_call_param, bound)
    return await plan_of(spec, [token_ids], runtime, context)


async def to_conversation(
    request: ChatRequest,
    date: str,
    offered: OfferedTools = NO_OFFERED_TOOLS,
    *,
    opens_answer: bool = True,
) -> Conversation:
    _check_names(request.tools or ())
    read = functools.partial(_messages, request)
    messages = await by_number(read, len(request.messages))
    tools = tuple(
        _tool(tool, f"tools[{index}]")
        for index, tool in enumerate(request.tools or ())
        if not isinstance(tool, BuiltinTool)
    )
    return Conversation(
        messages=messages,
        current_date=date,
        tools=() if request.tool_choice == "none" else tools,
        reasoning_effort=_effort(request),
        response_format=_described_format(request),
        builtins=offered.tools,
        verbosity=request.verbosity or "medium",
        opens_answer=opens_answer,
    )


def _effort(request: ChatRequest) -> ReasoningEffort:
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
        raise RequestError(f"{names} differ; send only reasoning_effort.", param=[*given][-1])
    return next(iter(given.values()), None)


def _tool_call_param(index: int) -> str:
    return f"messages[{index}].tool_call_id"


def _check_together(request: ChatRequest) -> None:
    """Refuse combinations of fields that are valid alone."""
    if request.stream and request.prompt_logprobs is not None:
        raise prompt_logprobs_not_streamed("prompt_logprobs")
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
    if request.return_token_logprobs:
        if not request.logprobs or not request.return_token_ids:
            message = "return_token_logprobs needs logprobs: true and return_token_ids: true."
            raise RequestError(message, param="return_token_logprobs")
        if request.include_reasoning is False:
            message = (
                "return_token_logprobs shows the reasoning; leave out include_reasoning: false."
            )
            raise RequestError(message, param="return_token_logprobs")
    if request.stream_options and not request.stream:
        raise RequestError("stream_options needs stream: true.", param="stream_options")
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise RequestError(
            "max_tokens and max_completion_tokens differ; send only max_completion_tokens.",
            param="max_tokens",
        )


def _tool(tool: ChatFunctionTool | ChatCustomTool, field: str) -> Tool:
    if isinstance(tool, ChatCustomTool):
        custom = tool.custom
        text, place = free_text(custom.format), f"{field}.custom.format.grammar.definition"
        return Tool(custom.name, custom.description or "", free_text=text, field=place)
    function = tool.function
    description = function.description or ""
    place = f"{field}.function.parameters"
    return Tool(function.name, description, function.parameters, function.strict, field=place)


def _messages(request: ChatRequest) -> tuple[Message, ...]:
    messages = []
    for index, message in enumerate(request.messages):
        rest()
        messages.append(_message(message, index))
    return tuple(messages)


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
            "are aliases; send one of them.",
            param=f"messages[{index}].reasoning_content",
        )
    return given.pop() or "" if given else ""


def _check_names(tools: Sequence[GivenTool]) -> None:
    """Raise RequestError for a name that comes twice."""
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if isinstance(tool, BuiltinTool):
            continue
        name = tool.custom.name if isinstance(tool, ChatCustomTool) else tool.function.name
        if name in seen:
            param = f"tools[{index}].{tool.type}.name"
            message = f"{param} repeats {name!r}; give each tool its own name."
            raise RequestError(message, param=param)
        seen.add(name)


def chat_tools(request: ChatRequest, toolbox: Toolbox | None) -> OfferedTools:
    """The built-in tools of a request; raises RequestError for one that is not connected."""
    wanted = {
        f"tools[{index}].type": BUILTIN_OF[tool.type]
        for index, tool in enumerate(request.tools or ())
        if isinstance(tool, BuiltinTool)
    }
    if request.web_search_options is not None:
        wanted["web_search_options"] = "browser"
    for param, tool in wanted.items():
        if toolbox is None or tool not in toolbox.tools:
            raise RequestError(
                f"{param} asks for the built-in tool {tool!r}, which is not connected to this "
                f"server (NIM_BUILTIN_TOOLS, NIM_{tool.upper()}_MCP_URL); offer a function that "
                "does the same.",
                param=param,
                code="unsupported_value",
            )
    return offered_tools(toolbox, wanted.values(), is_hidden=request.tool_choice == "none")


def _tool_choice(choice: GivenToolChoice | None) -> ToolChoice:
    match choice:
        case None:
            return ToolChoice()
        case NamedTool() | NamedCustomTool():
            return ToolChoice.named(choice.function.name)
        case AllowedToolsChoice():
            allowed = choice.allowed_tools
            return ToolChoice(allowed.mode, frozenset(tool.function.name for tool in allowed.tools))
        case _:
            return ToolChoice(choice)


def _described_format(request: ChatRequest) -> ResponseFormatNote | None:
    """The schema of the answer, as the prompt tells the model."""
    outputs, format = request.structured_outputs, request.response_format
    if outputs is not None and outputs.json_ is not None:
        return ResponseFormatNote(outputs.json_)
    if not isinstance(format, JSONSchemaFormat):
        return None
    given = format.json_schema
    return ResponseFormatNote(given.schema_, given.name, given.description or "")


ROUTES: Final = Routes(
    rows=(PathRow("/v1/chat/completions", Scope.INFERENCE, is_generating=True),),
    router=router,
    rank=0,
    groups=(RouteGroup("Chat completions", "OpenAI's Chat Completions API.", 0),),
)
