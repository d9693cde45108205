"""POST /v1/chat/completions."""

from __future__ import annotations

import functools

from fastapi import APIRouter, Response

from service.answer.generation import Generation
from service.api.chat.answer import ChatAnswer, ChatChunks, ChatCompletion
from service.api.chat.request import plan_chat
from service.api.chat.schema import ChatRequest
from service.api.common.answer import StreamedUsage
from service.api.common.operations import event_stream, operation_id
from service.api.common.schema import ERRORS
from service.http.body import JSONRoute
from service.http.streaming import EventStream, WholeAnswer
from service.runtime import CurrentContext, CurrentRuntime, Runtime

router = APIRouter(
    route_class=JSONRoute,
    responses=ERRORS,
    tags=["Chat completions"],
    generate_unique_id_function=operation_id,
)


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
    plan = await plan_chat(body, runtime, context)
    generation = Generation(runtime.engine, plan)
    if body.stream:
        return _streamed(runtime, generation, StreamedUsage.asked(body.stream_options))
    return _whole(runtime, generation)


def _streamed(runtime: Runtime, generation: Generation, usage: StreamedUsage) -> EventStream:
    encoder = ChatChunks(
        generation,
        id=f"chatcmpl-{runtime.new_id()}",
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
