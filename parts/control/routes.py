"""POST /v1/chat/completions/{id}/control: end the reasoning of a running answer."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Path
from pydantic import Field

from auth.base import Scope
from parts.control.neighbours import Neighbours
from service.answer.running import ControlOutcome
from service.api.common.operations import json_router
from service.api.common.schema import RequestModel, ResponseModel
from service.errors import RequestError
from service.http.paths import PathRow, RouteGroup, Routes
from service.request import RequestContext
from service.runtime import CurrentContext, CurrentRuntime, Runtime

router = json_router("Control")

_PATH: Final = "/v1/chat/completions/{completion_id}/control"
_LLAMA_PATH: Final = "/v1/chat/completions/control"
AnswerId = Annotated[str, Field(max_length=128)]
PathId = Annotated[str, Path(max_length=128)]


class ControlRequest(RequestModel):
    """What to do with a running answer."""

    action: Literal["reasoning_end"]
    model: str | None = None


class ControlById(ControlRequest):
    """The same as llama.cpp has it."""

    id: AnswerId


class ControlResult(ResponseModel):
    """The reasoning ends."""

    id: str
    object: Literal["chat.completion.control"] = "chat.completion.control"
    action: Literal["reasoning_end"] = "reasoning_end"
    success: bool = True


@router.post(_LLAMA_PATH)
async def control_by_id(
    body: ControlById, runtime: CurrentRuntime, context: CurrentContext
) -> ControlResult:
    """The same with the id in the body, as llama.cpp has it."""
    return await _end_reasoning(body.id, runtime, context)


@router.post(_PATH)
async def control(
    completion_id: PathId, body: ControlRequest, runtime: CurrentRuntime, context: CurrentContext
) -> ControlResult:
    """Have a streamed chat completion end its reasoning: its answer, or a call, follows."""
    return await _end_reasoning(completion_id, runtime, context)


async def _end_reasoning(id: str, runtime: Runtime, context: RequestContext) -> ControlResult:
    neighbours = runtime.of(Neighbours) or Neighbours(runtime.answers, None)
    told = await neighbours.end_reasoning(id, context.tenant)
    if told is ControlOutcome.UNKNOWN:
        raise RequestError(
            "No chat completion of this id is being streamed by this server. It may have ended, or "
            "another replica streams it: send the request there.",
            param="id",
            code="completion_not_found",
            status=404,
        )
    if told is ControlOutcome.TOO_LATE:
        raise RequestError(
            "This chat completion does not reason any more: its answer or a call has begun.",
            param="id",
            code="not_reasoning",
            status=409,
        )
    return ControlResult(id=id)


ROUTES: Final = (
    Routes(
        rows=(PathRow(_PATH, Scope.INFERENCE), PathRow(_LLAMA_PATH, Scope.INFERENCE)),
        router=router,
        rank=1,
        groups=(RouteGroup("Control", "Ends the reasoning of running answers.", 1),),
    ),
)
