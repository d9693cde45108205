"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.answer.generation import Generation
from service.api.common.answer import StreamedUsage
from service.api.common.operations import event_stream, operation_id
from service.api.common.schema import ERRORS
from service.api.completions.answer import CompletionAnswer, CompletionChunks, CompletionHead
from service.api.completions.request import echoes, plan_completion
from service.api.completions.schema import Completion, CompletionRequest
from service.http.body import JSONRoute
from service.http.streaming import EventStream, WholeAnswer
from service.runtime import CurrentContext, CurrentRuntime

router = APIRouter(
    route_class=JSONRoute,
    responses=ERRORS,
    tags=["Completions"],
    generate_unique_id_function=operation_id,
)


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses=event_stream("`text_completion` objects, then `[DONE]`."),
)
async def create_completion(
    body: CompletionRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Continue raw prompts; with `stream` as server-sent events ending in `[DONE]`."""
    runtime.lifecycle.check_accepting()
    plan = await plan_completion(body, runtime, context)
    echoed = await echoes(body, plan)
    generation = Generation(runtime.engine, plan)
    head = CompletionHead(f"cmpl-{runtime.new_id()}", int(runtime.clock()), runtime.model.id)
    if body.stream:
        usage = StreamedUsage.asked(body.stream_options)
        chunks = CompletionChunks(generation, head, echoed, usage)
        return EventStream(runtime, generation, chunks)
    answer = CompletionAnswer(generation, head, echoed, body.prompt_logprobs)
    return WholeAnswer(runtime, generation, answer.add, answer.body)
