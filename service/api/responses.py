"""Errors as HTTP answers, in the one shape."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.api.body import BodyError, describe
from service.errors import TABLE, RequestError, failure_of


def error_response(error: Exception) -> Response:
    """The answer to any exception."""
    failure = failure_of(error)
    return Response(
        msgspec.json.encode(failure.body()),
        failure.row.status,
        dict(failure.row.headers),
        "application/json",
    )


def add_error_handlers(app: FastAPI) -> None:
    """Every error of the framework and of ours is answered in the same shape."""
    for error in (*TABLE, RequestError):
        app.add_exception_handler(error, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_error(_request: Request, error: Exception) -> Response:
    return error_response(error)


async def _on_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(describe(error))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, BodyError):
        return error_response(error.error)
    return error_response(_routing_error(request, error))


def _routing_error(request: Request, error: HTTPException) -> RequestError:
    path = request.url.path[:200]
    if error.status_code == 404:
        message = f"There is no route {path}; GET /openapi.json lists the routes."
        return RequestError(message, status=404, code="route_not_found")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{path} does not take {request.method}; it takes {allowed}."
        headers = {"Allow": allowed}
        return RequestError(message, status=405, code="method_not_allowed", headers=headers)
    return RequestError(str(error.detail), status=error.status_code, headers=error.headers)
