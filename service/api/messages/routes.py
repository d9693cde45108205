"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.answer.generation import Generation
from service.api.common.operations import event_stream, operation_id
from service.api.common.prompt import counting_bound
from service.api.messages.answer import MessageAnswer, MessageEvents, MessageHead
from service.api.messages.request import (
    omits_thinking,
    plan_message,
    prompt_of_message,
    render_message,
)
from service.api.messages.response_schema import Message, MessageError, OriginalCount, TokenCount
from service.api.messages.schema import CountTokensRequest, MessagesRequest
from service.http.body import JSONRoute
from service.http.streaming import EventStream, WholeAnswer
from service.runtime import CurrentContext, CurrentRuntime

router = APIRouter(
    route_class=JSONRoute,
    responses={"4XX": {"model": MessageError}, "5XX": {"model": MessageError}},
    tags=["Messages"],
    generate_unique_id_function=operation_id,
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
    prompt = await prompt_of_message(body, runtime, context)
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
    prompt = await render_message(body, runtime, context, counting_bound("messages"))
    count = len(prompt.token_ids)
    if prompt.cleared is None:
        return TokenCount(input_tokens=count)
    original = OriginalCount(original_input_tokens=count + prompt.cleared.num_tokens)
    return TokenCount(input_tokens=count, context_management=original)
