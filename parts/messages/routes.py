"""POST /v1/messages and /v1/messages/count_tokens: what the fields of Anthropic's API mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fastapi import Response

from auth.base import Scope
from parts.messages.answer import Cleared, MessageAnswer, MessageEvents, MessageHead
from parts.messages.compaction import (
    CompactedMessage,
    CompactedTurns,
    compacted,
    edit_of,
    has_past,
    open_history,
    threshold_of,
)
from parts.messages.conversation import MessageHistory, results_of, to_conversation
from parts.messages.errors import too_long
from parts.messages.response_schema import Message, OriginalCount, TokenCount
from parts.messages.schema import (
    REFUSED,
    ChoiceNone,
    CountTokensRequest,
    MessagesRequest,
    ThinkingAdaptive,
    ThinkingDisabled,
    ThinkingEnabled,
)
from parts.messages.server_tools import BROWSER, ServerTool, searches
from service.answer.generation import Generation
from service.answer.plan import OfferedTools, Plan, offered_tools
from service.api.common.foreign import note_unread
from service.api.common.operations import event_stream, json_router
from service.api.common.plan import AnswerSpec, Guidance, plan_of
from service.api.common.prompt import (
    MAX_COUNTED,
    PromptBound,
    context_bound,
    counting_bound,
    current_date,
    render_prompt,
    runtime_for,
)
from service.api.common.schema import SamplingFields
from service.chat_format import ChatFormat
from service.conversation import Conversation, ReasoningEffort, Tool
from service.errors import RequestError
from service.guide.answer import TEXT, AnswerFormat, FieldNames, ToolChoice
from service.http.paths import ANTHROPIC, PathRow, RouteGroup, Routes
from service.http.streaming import EventStream, WholeAnswer
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime
from service.work import Budget, OverBudget, by_number, in_thread

router = json_router("Messages")

# A budget of at least this many tokens means that effort.
_BUDGET_EFFORTS: tuple[tuple[int, ReasoningEffort], ...] = (
    (16_384, "high"),
    (4_096, "medium"),
    (0, "low"),
)
_FIELDS = FieldNames(
    choice="tool_choice", format="output_config.format", schema="output_config.format.schema"
)


@router.post(
    "/v1/messages",
    response_model=Message,
    responses=event_stream("Anthropic's typed events, the last `message_stop`."),
)
async def create_message(
    body: MessagesRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Answer a conversation; with `stream` as Anthropic's typed events."""
    runtime.lifecycle.check_accepting()
    runtime = runtime_for(body.model, runtime, context)
    if (asked := body.compaction) is not None:
        summarized = await conversation_of_message(body, runtime, context)
        write = partial(compacted, summarized, runtime, context, asked.instructions, is_whole=True)
        return CompactedMessage(runtime, body, write)
    prompt, done = await compacted_prompt(body, runtime, context)
    edit = edit_of(body)
    if done is not None and edit is not None and edit.pause_after_compaction:
        return CompactedMessage(runtime, body, partial(_given, done))
    plan = await plan_message(body, prompt, runtime, context)
    generation = Generation(runtime.engine, plan)
    head = MessageHead(
        generation,
        id=f"msg_{runtime.new_id()}",
        model=runtime.model.id,
        max_tokens=body.max_tokens,
        new_call_id=lambda: f"toolu_{runtime.new_id()[-24:]}",
        omits_thinking=omits_thinking(body),
        cleared=prompt.cleared,
        compacted=done.block if done else None,
        cost=done.cost if done else None,
    )
    if body.stream:
        return EventStream(runtime, generation, MessageEvents(head))
    answer = MessageAnswer(head)
    return WholeAnswer(runtime, generation, answer.add, answer.body)


@router.post("/v1/messages/count_tokens", response_model_exclude_none=True)
async def count_tokens(
    body: CountTokensRequest, runtime: CurrentRuntime, context: CurrentContext
) -> TokenCount:
    """How long the prompt of this conversation is, and was before any edit of the context."""
    runtime.lifecycle.check_started()
    runtime = runtime_for(body.model, runtime, context)
    prompt = await render_message(body, runtime, context, counting_bound("messages"))
    count = len(prompt.token_ids)
    if prompt.cleared is None:
        return TokenCount(input_tokens=count)
    original = OriginalCount(original_input_tokens=count + prompt.cleared.num_tokens)
    return TokenCount(input_tokens=count, context_management=original)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt, and what the client's edits of the context cleared from it."""

    conversation: Conversation
    token_ids: tuple[int, ...]
    cleared: Cleared | None  # None: the client asked for no edits


async def prompt_of_message(
    request: MessagesRequest, runtime: Runtime, context: RequestContext
) -> Prompt:
    """The prompt of a request to answer; raises RequestError where the context does not hold it."""
    bound = context_bound(runtime.engine.info, "messages", too_long)
    return await render_message(request, runtime, context, bound)


async def plan_message(
    request: MessagesRequest, prompt: Prompt, runtime: Runtime, context: RequestContext
) -> Plan:
    """The plan of a message's request; raises RequestError naming the field."""
    tools, offered = prompt.conversation.tools, _offered(request, runtime)
    choice = _choice(request, tools, offered)
    fields = SamplingFields(
        temperature=request.temperature, top_p=request.top_p, top_k=request.top_k
    )
    spec = AnswerSpec(
        fields,
        request.max_tokens,
        Guidance(choice, _format(request), _FIELDS, _budget(request)),
        tools,
        offered,
        shows_calls=True,
        stop=request.stop_sequences,
        max_calls=_max_calls(request),
        has_reasoning=has_thinking(request),
    )
    return await plan_of(spec, [prompt.token_ids], runtime, context)


async def _given(done: CompactedTurns) -> CompactedTurns:
    return done


async def compacted_prompt(
    request: MessagesRequest, runtime: Runtime, context: RequestContext
) -> tuple[Prompt, CompactedTurns | None]:
    """The prompt, and its compaction where an edit asks for one and the prompt is long."""
    edit = edit_of(request)
    if edit is None:
        return await prompt_of_message(request, runtime, context), None
    most = threshold_of(edit, runtime)
    info = runtime.engine.info
    try:
        bound = context_bound(info, "messages", too_long)
        is_narrow = most < bound.max_tokens
        bound = replace(bound, max_tokens=most, counts_on=False) if is_narrow else bound
        return await render_message(request, runtime, context, bound), None
    except RequestError as error:
        if error.code != "context_length_exceeded":
            raise
    conversation = await conversation_of_message(request, runtime, context)
    if not has_past(conversation):
        return await prompt_of_message(request, runtime, context), None
    done = await compacted(conversation, runtime, context, edit.instructions)
    bound = context_bound(info, "messages", too_long)
    token_ids = await render_prompt(runtime.format, done.conversation, _messages, bound)
    return Prompt(done.conversation, token_ids, None), done


def _messages(_: int) -> str:
    return "messages"


async def conversation_of_message(
    request: CountTokensRequest, runtime: Runtime, context: RequestContext
) -> Conversation:
    """The conversation of a request; raises RequestError."""
    return (await _conversation(request, runtime, context))[0]


async def _conversation(
    request: CountTokensRequest, runtime: Runtime, context: RequestContext
) -> tuple[Conversation, MessageHistory]:
    _check_thread(request)
    read = partial(MessageHistory, request, runtime.format)
    history = await by_number(read, len(request.messages))
    await open_history(history, runtime.compactor, context)
    note_unread(context, results_of(request))
    date = current_date(runtime.clock())
    builtins = _offered(request, runtime).tools
    conversation = to_conversation(request, history, date, effort_of(request), builtins)
    return conversation, history


async def render_message(
    request: CountTokensRequest, runtime: Runtime, context: RequestContext, bound: PromptBound
) -> Prompt:
    """The conversation and its prompt's ids: all that counting needs."""
    conversation, history = await _conversation(request, runtime, context)
    token_ids = await render_prompt(runtime.format, conversation, history.param_of, bound)
    cleared = None
    if request.context_management is not None:
        cleared = await _cleared(runtime.format, conversation, len(token_ids), history.cleared)
    return Prompt(conversation, token_ids, cleared)


async def _cleared(
    format: ChatFormat, edited: Conversation, num_tokens: int, thoughts: Mapping[int, str]
) -> Cleared:
    """Count the tokens that are missing from the prompt, in a thread and up to a limit."""
    if not thoughts:
        return Cleared(0, 0)
    messages = [*edited.messages]
    for index, reasoning in thoughts.items():
        messages[index] = replace(messages[index], reasoning=reasoning)
    whole = replace(edited, messages=tuple(messages))
    try:
        budget = Budget(MAX_COUNTED, "tokens")
        num_whole = len(await in_thread(partial(format.prompt_of, whole), budget))
    except OverBudget:
        num_whole = MAX_COUNTED
    return Cleared(len(thoughts), max(num_whole - num_tokens, 0))


def _check_thread(request: CountTokensRequest) -> None:
    """The SDK's tool loop first asks for a thread; on this error code it continues without one."""
    if request.thread:
        raise RequestError(
            f"thread: {REFUSED['thread']}.", param="thread", code="thread_unsupported_request"
        )


def effort_of(request: CountTokensRequest) -> ReasoningEffort:
    """The effort that was asked for by name, else the one that matches the thinking budget."""
    if request.output_config is not None and request.output_config.effort is not None:
        return request.output_config.effort
    thinking = request.thinking
    if isinstance(thinking, ThinkingDisabled):
        return "none"
    if isinstance(thinking, ThinkingEnabled):
        return next(effort for size, effort in _BUDGET_EFFORTS if thinking.budget_tokens >= size)
    return None


def has_thinking(request: CountTokensRequest) -> bool:
    """Whether the answer shows the chain of thought: to those who asked for it."""
    return request.thinking is not None and not isinstance(request.thinking, ThinkingDisabled)


def omits_thinking(request: CountTokensRequest) -> bool:
    thinking = request.thinking
    return (
        isinstance(thinking, ThinkingEnabled | ThinkingAdaptive) and thinking.display == "omitted"
    )


def _max_calls(request: MessagesRequest) -> int | None:
    choice = request.tool_choice
    if choice is None or isinstance(choice, ChoiceNone):
        return None
    return 1 if choice.disable_parallel_tool_use else None


def _format(request: MessagesRequest) -> AnswerFormat:
    format = request.output_config.format if request.output_config else None
    return AnswerFormat("json_schema", format.schema_, widens=True) if format else TEXT


def _offered(request: CountTokensRequest, runtime: Runtime) -> OfferedTools:
    """The browser, for a web search."""
    found = searches(request.tools or ())
    uses = [tool.max_uses for tool in found if tool.max_uses is not None]
    return offered_tools(
        runtime.toolbox if found else None,
        (BROWSER,),
        is_hidden=request.tool_choice is not None and request.tool_choice.type == "none",
        max_calls=min(uses, default=None),
    )


def _choice(request: MessagesRequest, tools: tuple[Tool, ...], offered: OfferedTools) -> ToolChoice:
    """What of the tools may or must be called.

    A server's tool that is not connected cannot be forced: the model answers by itself, because
    a client that sends such a request alone for it has no other.
    """
    choice = request.tool_choice
    if choice is None or choice.type == "auto":
        return ToolChoice()
    if choice.type == "none":
        return ToolChoice("none")
    servers = {tool.name for tool in request.tools or () if isinstance(tool, ServerTool)}
    if choice.type == "any":
        is_empty = servers and not (tools or offered.tools)
        return ToolChoice() if is_empty else ToolChoice("required")
    if choice.name not in servers:
        return ToolChoice.named(choice.name)
    if offered.tools and choice.name in {tool.name for tool in searches(request.tools or ())}:
        return ToolChoice("required", frozenset(), frozenset(offered.tools))
    return ToolChoice()


def _budget(request: MessagesRequest) -> int | None:
    if not isinstance(request.thinking, ThinkingEnabled):
        return None
    budget = request.thinking.budget_tokens
    if budget >= request.max_tokens:
        raise RequestError(
            f"thinking.budget_tokens is {budget}, which leaves no tokens of max_tokens "
            f"({request.max_tokens}) for the answer; lower it.",
            param="thinking.budget_tokens",
        )
    return budget


ROUTES: Final = (
    Routes(
        rows=(
            PathRow("/v1/messages", Scope.INFERENCE, is_generating=True, dialect=ANTHROPIC),
            PathRow(
                "/v1/messages/count_tokens", Scope.INFERENCE, is_counted=True, dialect=ANTHROPIC
            ),
        ),
        router=router,
        rank=30,
        groups=(RouteGroup("Messages", "Anthropic's Messages API.", 20),),
    ),
)
