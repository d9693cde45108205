"""Errors as HTTP answers: in the dialect of the route's API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from service.errors import RequestError
from service.http.body import BodyError
from service.http.failures import TABLE, describe, ended_by
from service.http.paths import OPENAI, ROW, PathRow
from service.settings.answers import answer

# What no cache may keep: every answer but the pages and their assets.
NO_STORE: Final = "no-store"


@dataclass(frozen=True, slots=True)
class LostPage:
    """In a Runtime: what a browser shows where a person asked for a path that there is not."""

    page: Callable[[str], Response]


def error_response(error: Exception, scope: Scope) -> Response:
    """The HTTP answer to an exception, in the shape of the route's API."""
    failure = ended_by(error)
    row: PathRow | None = scope.get(ROW)
    dialect = OPENAI if row is None else row.dialect
    return Response(
        msgspec.json.encode(dialect.error_body(failure)),
        failure.kind.status,
        {**failure.kind.headers, "Cache-Control": NO_STORE},
        "application/json",
    )


def add_error_handlers(app: FastAPI) -> None:
    """Register handlers, so that all errors, the framework's too, are answered in one shape."""
    for error in (*TABLE, RequestError):
        app.add_exception_handler(error, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.scope)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(describe(error), request.scope)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, BodyError):
        return error_response(error.error, request.scope)
    lost: LostPage | None = request.app.state.runtime.of(LostPage)
    is_read = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if lost and is_read and error.status_code == 404:
        return lost.page(request.url.path)
    return error_response(_routing_error(request, error), request.scope)


def _routing_error(request: Request, error: HTTPException) -> RequestError:
    path = request.url.path[:200]
    if error.status_code == 404:
        instead = answer("routes", path) or "GET /openapi.json lists the routes."
        message = f"There is no route {path}. {instead}"
        return RequestError(message, status=404, code="route_not_found")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{path} does not support {request.method}; it supports {allowed}."
        headers = {"Allow": allowed}
        return RequestError(message, status=405, code="method_not_allowed", headers=headers)
    return RequestError(str(error.detail), status=error.status_code, headers=error.headers)
