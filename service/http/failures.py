"""The one error shape, and the table from exception to status, type and code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from auth.base import AuthError, Forbidden, InvalidCredentials, MissingCredentials
from auth.key_source import KeysUnavailable
from auth.throttle import RETRY_S, TooManyFailures
from engines import errors as engine
from service.admission.lifecycle import NotReady
from service.errors import INVALID_REQUEST, UNAVAILABLE, RequestError
from service.store.base import StoreError


@dataclass(frozen=True, slots=True)
class Row:
    """What a client sees of one class of exception."""

    status: int
    type: str
    code: str
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str | None = None  # instead of the exception's own words, which are the log's


_NO_KEY = "This server needs an API key or token: Authorization: Bearer <key>, or X-API-Key: <key>."
_WRONG_KEY = "The API key or token was not accepted."
_WRONG_HEADERS = {"WWW-Authenticate": 'Bearer error="invalid_token"'}
_NARROW_HEADERS = {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}
_RETRY_HEADERS = {"Retry-After": "1"}

TABLE: dict[type[Exception], Row] = {
    engine.EngineError: Row(500, "server_error", "engine_error"),
    engine.EngineStartError: Row(503, UNAVAILABLE, "engine_start_error"),
    engine.EngineDead: Row(503, UNAVAILABLE, "engine_dead", _RETRY_HEADERS),
    engine.EngineDraining: Row(503, UNAVAILABLE, "engine_draining", _RETRY_HEADERS),
    engine.QueueFull: Row(429, "rate_limit_error", "queue_full", _RETRY_HEADERS),
    engine.RequestQuarantined: Row(422, INVALID_REQUEST, "request_quarantined"),
    engine.InvalidRequest: Row(400, INVALID_REQUEST, "invalid_request"),
    engine.InvalidGrammar: Row(400, INVALID_REQUEST, "invalid_grammar"),
    engine.PromptTooLong: Row(400, INVALID_REQUEST, "context_length_exceeded"),
    engine.RequestFailed: Row(500, "server_error", "request_failed"),
    engine.OutOfMemory: Row(503, UNAVAILABLE, "out_of_memory", _RETRY_HEADERS),
    StoreError: Row(
        503,
        UNAVAILABLE,
        "store_failed",
        _RETRY_HEADERS,
        message="Stored responses cannot be read or written now; try again later.",
    ),
    # Closing the connection lets a balancer choose another server for the next request.
    NotReady: Row(503, UNAVAILABLE, "not_ready", _RETRY_HEADERS | {"Connection": "close"}),
    AuthError: Row(401, INVALID_REQUEST, "invalid_api_key", _WRONG_HEADERS, _WRONG_KEY),
    InvalidCredentials: Row(401, INVALID_REQUEST, "invalid_api_key", _WRONG_HEADERS, _WRONG_KEY),
    MissingCredentials: Row(
        401, INVALID_REQUEST, "missing_api_key", {"WWW-Authenticate": "Bearer"}, _NO_KEY
    ),
    TooManyFailures: Row(
        429,
        "rate_limit_error",
        "too_many_failures",
        {"Retry-After": f"{RETRY_S:.0f}"},
        "Too many wrong API keys or tokens came from this address; try again later.",
    ),
    KeysUnavailable: Row(
        503,
        UNAVAILABLE,
        "auth_unavailable",
        _RETRY_HEADERS,
        "Tokens cannot be checked now; try again later.",
    ),
    Forbidden: Row(
        403,
        "permission_error",
        "permission_denied",
        _NARROW_HEADERS,
        "This API key or token may not use this route or model.",
    ),
}

INTERNAL = Row(500, "server_error", "internal_error")
INTERNAL_MESSAGE = "The server failed on this request; its log has the details."


@dataclass(frozen=True, slots=True)
class Failure:
    """Everything needed to answer an error: the row, the words and the field at fault."""

    row: Row
    message: str
    param: str | None = None

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.row.type,
                "param": self.param,
                "code": self.row.code,
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        """The same in the shape of Anthropic's API."""
        status = self.row.status
        default = "invalid_request_error" if status < 500 else "api_error"
        kind = _ANTHROPIC_TYPES.get(status, default)
        details = {"error_code": self.row.code, "param": self.param}
        return {
            "type": "error",
            "error": {"type": kind, "message": self.message, "details": details},
        }


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def failure_of(error: BaseException) -> Failure:
    """Look the exception up by its nearest class; unforeseen ones keep their words to the log."""
    if isinstance(error, RequestError):
        row = Row(error.status, error.type, error.code or "invalid_request", error.headers)
        return Failure(row, str(error), error.param)
    for cls in type(error).__mro__:
        if cls in TABLE:
            row = TABLE[cls]
            return Failure(row, row.message or str(error) or row.code)
    return Failure(INTERNAL, INTERNAL_MESSAGE)
