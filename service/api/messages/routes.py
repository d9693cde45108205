"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.answer.generation import Generation
from service.api.common.dependencies import CurrentRuntime, RequestId
from service.api.common.prompt import counting_bound
from service.api.messages.answer import MessageAnswer, MessageEvents, MessageHead
from service.api.messages.request import omits_thinking, plan_message, render_message
from service.api.messages.response_schema import Message, MessageError, TokenCount
from service.api.messages.schema import CountTokensRequest, MessagesRequest
from service.http.body import JSONRoute
from service.http.streaming import EventStream, WholeAnswer

router = APIRouter(
    route_class=JSONRoute,
    responses={"4XX": {"model": MessageError}, "5XX": {"model": MessageError}},
)


@router.post("/v1/messages", response_model=Message)
async def create_message(
    body: MessagesRequest, runtime: CurrentRuntime, request_id: RequestId
) -> Response:
    """Answer a conversation; with `stream` as Anthropic's typed events."""
    runtime.lifecycle.check_accepting()
    plan = await plan_message(body, runtime, request_id)
    generation = Generation(runtime.engine, plan)
    head = MessageHead(
        generation,
        id=f"msg_{runtime.new_id()}",
        model=runtime.model.id,
        max_tokens=body.max_tokens,
        new_call_id=lambda: f"toolu_{runtime.new_id()[-24:]}",
        omits_thinking=omits_thinking(body),
    )
    if body.stream:
        return EventStream(runtime, generation, MessageEvents(head))
    answer = MessageAnswer(head)
    return WholeAnswer(runtime, generation, answer.add, answer.body)


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensRequest, runtime: CurrentRuntime) -> TokenCount:
    """How long the prompt of this conversation is."""
    runtime.lifecycle.check_started()
    _, token_ids = await render_message(body, runtime, counting_bound("messages"))
    return TokenCount(input_tokens=len(token_ids))
