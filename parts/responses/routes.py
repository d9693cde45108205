"""The routes under /v1/responses."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final, Literal

from fastapi import FastAPI, Header, Query, Request, Response

from auth.base import Scope
from parts.responses import retrieval
from parts.responses.answer.document import decode, encode
from parts.responses.answer.events import (
    OPEN_RESPONSES_NAMES,
    OPENAI_NAMES,
    DefaultNames,
    EventNames,
)
from parts.responses.background import response_jobs
from parts.responses.compacting.answers import (
    compacted_response,
    is_triggered,
    triggered_response,
)
from parts.responses.conversations.routes import CONVERSATION_ROUTES
from parts.responses.request import Draft, count_input, draft_response
from parts.responses.schemas.request import (
    INCLUDABLE,
    CompactRequest,
    ContextRequest,
    ResponseRequest,
)
from parts.responses.schemas.response import (
    CompactedResponse,
    DeletedResponse,
    InputItemList,
    InputTokens,
    ResponseObject,
)
from parts.responses.socket.connection import Connections, SocketResponse
from parts.responses.socket.prepared import PreparedResponse
from parts.responses.socket.turn import TURN, SocketTurn
from parts.responses.stored import store_of
from parts.responses.writing import FollowedEvents, StreamedResponse, WholeResponse
from service.api.common.operations import event_stream, json_router
from service.api.common.prompt import runtime_for
from service.errors import RequestError
from service.http.paths import PathRow, RouteGroup, Routes
from service.http.websocket import SOCKET, accepting
from service.runtime import CurrentContext, CurrentRuntime, Runtime

router = json_router("Responses")

OpenResponses = Annotated[
    str | None,
    Header(
        alias="OpenResponses-Version",
        description="Any value: reasoning's events have the names of the Open Responses"
        " specification, `response.reasoning.delta` and `.done`.",
    ),
]
Include = Annotated[list[INCLUDABLE] | None, Query(alias="include[]")]


_EVENTS: Final = event_stream("OpenAI's typed events, then `[DONE]`.")


@router.post("/responses", include_in_schema=False)  # llama.cpp's path
@router.post("/v1/responses", response_model=ResponseObject, responses=_EVENTS)
async def create_response(
    body: ResponseRequest,
    runtime: CurrentRuntime,
    context: CurrentContext,
    request: Request,
    open_responses: OpenResponses = None,
) -> Response:
    """Create a response; with `stream` as typed events, with `background` without waiting."""
    runtime.lifecycle.check_accepting()
    runtime = runtime_for(body.model, runtime, context)
    turn: SocketTurn | None = request.scope.get(TURN)
    past = turn.past(store_of(runtime)) if turn else None
    if is_triggered(body):
        triggered = await triggered_response(body, runtime, context, past)
        names, hold = _names(open_responses, runtime), turn.hold if turn else None
        triggered.begun = replace(triggered.begun, names=names, hold=hold)
        return triggered
    draft = await draft_response(body, runtime, context, past)
    draft = replace(draft, names=_names(open_responses, runtime), hold=turn.hold if turn else None)
    if turn and not turn.generates:
        return PreparedResponse(runtime, draft)
    if body.background:
        return await _in_background(runtime, draft, is_streamed=bool(body.stream))
    return StreamedResponse(runtime, draft) if body.stream else WholeResponse(runtime, draft)


@router.get("/v1/responses", include_in_schema=False)
async def open_socket(request: Request, runtime: CurrentRuntime) -> Response:
    """Open a WebSocket; without the wish for one there is nothing to get."""
    if SOCKET not in request.scope:
        raise RequestError(
            "GET /v1/responses opens a WebSocket, and this request has no Upgrade: websocket; "
            "use POST.",
            status=405,
            code="method_not_allowed",
            headers={"Allow": "POST"},
        )
    runtime.lifecycle.check_accepting()
    accepted = accepting(request.headers, runtime.cors_origins)
    return SocketResponse(runtime, _connections(request.app, runtime), accepted)


def _connections(app: FastAPI, runtime: Runtime) -> Connections:
    """The WebSockets of this application."""
    if not hasattr(app.state, "response_sockets"):
        app.state.response_sockets = Connections(runtime.limits.max_connections)
    made: Connections = app.state.response_sockets
    return made


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(
    body: ContextRequest, runtime: CurrentRuntime, context: CurrentContext
) -> InputTokens:
    """How long the prompt of this request is."""
    runtime.lifecycle.check_started()
    runtime = runtime_for(body.model, runtime, context)
    return InputTokens(input_tokens=await count_input(body, runtime, context))


@router.post("/v1/responses/compact", response_model=CompactedResponse)
async def compact_response(
    body: CompactRequest, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """Make a conversation short: all messages of the user, and the rest as one encrypted item."""
    if runtime.compactor is None:
        raise RequestError(
            "There is no route /v1/responses/compact: the server summarizes no history; use "
            "truncation: auto, or ask for a summary.",
            status=404,
            code="route_not_found",
        )
    runtime.lifecycle.check_accepting()
    runtime = runtime_for(body.model, runtime, context)
    return _json(encode(await compacted_response(body, runtime, context)))


@router.get("/v1/responses/{response_id}", response_model=ResponseObject, responses=_EVENTS)
async def get_response(
    response_id: str,
    runtime: CurrentRuntime,
    context: CurrentContext,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
    include_obfuscation: bool | None = None,
    include: Include = None,
    open_responses: OpenResponses = None,
) -> Response:
    """A stored response; with `stream` its events, from the one after `starting_after` on."""
    if starting_after is not None and not stream:
        raise RequestError("starting_after needs stream=true.", param="starting_after")
    record = await retrieval.read(runtime, response_id, context.tenant)
    if stream:
        after = -1 if starting_after is None else starting_after
        names = _names(open_responses, runtime)
        return FollowedEvents(runtime, retrieval.follow(runtime, record, after, names))
    return _json(await retrieval.shown(runtime, record))


@router.delete("/v1/responses/{response_id}")
async def delete_response(
    response_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> DeletedResponse:
    """Forget a response; one that still runs is cancelled first."""
    record = await retrieval.read(runtime, response_id, context.tenant)
    await retrieval.delete(runtime, record)
    return DeletedResponse(id=response_id)


@router.post("/v1/responses/{response_id}/cancel", response_model=ResponseObject)
async def cancel_response(
    response_id: str, runtime: CurrentRuntime, context: CurrentContext
) -> Response:
    """End a background response; one that has ended stays as it is."""
    record = await retrieval.read(runtime, response_id, context.tenant)
    if not decode(record.response)["background"]:
        raise RequestError(
            "Only a response made with background: true can be cancelled; for others, close "
            "the connection.",
            param="response_id",
            code="not_in_background",
        )
    return _json(await retrieval.shown(runtime, await retrieval.stop(runtime, record)))


@router.get("/v1/responses/{response_id}/input_items", response_model=InputItemList)
async def list_input_items(
    response_id: str,
    runtime: CurrentRuntime,
    context: CurrentContext,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    include: Include = None,
) -> Response:
    """The input items of that request, page by page."""
    record = await retrieval.read(runtime, response_id, context.tenant)
    items = retrieval.read_list(record.input)
    return _json(encode(retrieval.page(items, after=after, limit=limit, order=order)))


def _names(open_responses: str | None, runtime: Runtime) -> EventNames:
    """What the events of texts are called: as OpenAI has them, or as the client's header or the
    operator asks."""
    if open_responses is not None:
        return OPEN_RESPONSES_NAMES
    default = runtime.of(DefaultNames)
    return default.names if default else OPENAI_NAMES


async def _in_background(runtime: Runtime, draft: Draft, *, is_streamed: bool) -> Response:
    await response_jobs(runtime).begin(draft)
    if is_streamed:
        record = draft.record(draft.head, is_final=False)
        return FollowedEvents(runtime, retrieval.follow(runtime, record, names=draft.names))
    return _json(encode(draft.head))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


_PATHS: Final = (
    "/v1/responses/input_tokens",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    "/v1/responses/{response_id}/input_items",
)
ROUTES: Final = (
    Routes(
        rows=(
            PathRow("/v1/responses", Scope.INFERENCE, is_generating=True, is_websocket=True),
            PathRow("/responses", Scope.INFERENCE, is_generating=True),
            PathRow("/v1/responses/compact", Scope.INFERENCE, is_generating=True),
            *(PathRow(path, Scope.INFERENCE, is_counted=True) for path in _PATHS),
        ),
        router=router,
        rank=10,
        groups=(RouteGroup("Responses", "OpenAI's Responses API.", 10),),
    ),
    CONVERSATION_ROUTES,
)
