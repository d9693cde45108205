"""The shapes of errors, the table from exception to status, and pydantic's errors in our words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field

from auth.base import (
    AuthError,
    Forbidden,
    ForeignSignature,
    InvalidCredentials,
    KeysUnavailable,
    MissingCredentials,
)
from auth.throttle import RETRY_S, TooManyFailures
from engines import errors as engine
from engines.threads import NO_THREAD, lacks_threads
from service.admission.lifecycle import NotReady
from service.errors import INVALID_REQUEST, UNAVAILABLE, RequestError
from service.request import log_lines_of
from service.store.base import StoreError

# pydantic's kinds of error under OpenAI's names; any other is an invalid value.
_CODES = {
    "missing": "missing_required_parameter",
    "union_tag_not_found": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported_field": "unsupported_parameter",
    "unsupported_part": "unsupported_value",
    "unsupported_value": "unsupported_value",
    "invalid_grammar": "invalid_grammar",
}


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The status, type, code and headers with which a class of exceptions is answered."""

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

TABLE: dict[type[Exception], ErrorKind] = {
    engine.EngineError: ErrorKind(500, "server_error", "engine_error"),
    engine.EngineStartError: ErrorKind(503, UNAVAILABLE, "engine_start_error"),
    engine.EngineDead: ErrorKind(503, UNAVAILABLE, "engine_dead", _RETRY_HEADERS),
    engine.NotTaken: ErrorKind(503, UNAVAILABLE, "engine_dead", _RETRY_HEADERS),
    engine.EngineDraining: ErrorKind(503, UNAVAILABLE, "engine_draining", _RETRY_HEADERS),
    engine.Refused: ErrorKind(503, UNAVAILABLE, "overloaded", _RETRY_HEADERS),
    engine.QueueFull: ErrorKind(429, "rate_limit_error", "queue_full", _RETRY_HEADERS),
    engine.Overloaded: ErrorKind(503, UNAVAILABLE, "overloaded", _RETRY_HEADERS),
    engine.RequestQuarantined: ErrorKind(422, INVALID_REQUEST, "request_quarantined"),
    engine.InvalidRequest: ErrorKind(400, INVALID_REQUEST, "invalid_request"),
    engine.InvalidGrammar: ErrorKind(400, INVALID_REQUEST, "invalid_grammar"),
    engine.PromptTooLong: ErrorKind(400, INVALID_REQUEST, "context_length_exceeded"),
    engine.SlowReader: ErrorKind(503, UNAVAILABLE, "slow_reader"),
    # The engine's guard turns it into a retry or SlowReader; none should get here.
    engine.Paused: ErrorKind(503, UNAVAILABLE, "slow_reader"),
    engine.RequestFailed: ErrorKind(500, "server_error", "request_failed"),
    engine.OutOfMemory: ErrorKind(503, UNAVAILABLE, "out_of_memory", _RETRY_HEADERS),
    StoreError: ErrorKind(
        503,
        UNAVAILABLE,
        "store_failed",
        _RETRY_HEADERS,
        message="Stored responses cannot be read or written now; try again later.",
    ),
    # Closing the connection lets a balancer choose another server for the next request.
    NotReady: ErrorKind(503, UNAVAILABLE, "not_ready", _RETRY_HEADERS | {"Connection": "close"}),
    AuthError: ErrorKind(401, INVALID_REQUEST, "invalid_api_key", _WRONG_HEADERS, _WRONG_KEY),
    InvalidCredentials: ErrorKind(
        401, INVALID_REQUEST, "invalid_api_key", _WRONG_HEADERS, _WRONG_KEY
    ),
    ForeignSignature: ErrorKind(
        401, INVALID_REQUEST, "invalid_api_key", _WRONG_HEADERS, _WRONG_KEY
    ),
    MissingCredentials: ErrorKind(
        401, INVALID_REQUEST, "missing_api_key", {"WWW-Authenticate": "Bearer"}, _NO_KEY
    ),
    TooManyFailures: ErrorKind(
        429,
        "rate_limit_error",
        "too_many_failures",
        {"Retry-After": f"{RETRY_S:.0f}"},
        "Too many wrong API keys or tokens came from this address; try again later.",
    ),
    KeysUnavailable: ErrorKind(
        503,
        UNAVAILABLE,
        "auth_unavailable",
        _RETRY_HEADERS,
        "Tokens cannot be checked now; try again later.",
    ),
    Forbidden: ErrorKind(
        403,
        "permission_error",
        "permission_denied",
        _NARROW_HEADERS,
        "This API key or token may not use this route or model.",
    ),
}

INTERNAL = ErrorKind(500, "server_error", "internal_error")
INTERNAL_MESSAGE = "Internal error; the server's log has the details."


_ANTHROPIC: Final = {  # types of errors, by status
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ErrorBody(_Shape):
    """What went wrong, which field it is about, and a code for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(_Shape):
    """What every route answers when it cannot do what was asked."""

    error: ErrorBody


class MessageErrorDetails(_Shape):
    """What went wrong."""

    error_code: str = Field(description="A name of the error for programs.")
    param: str | None


class MessageErrorBody(_Shape):
    """An error answer in Anthropic's shape."""

    type: str = Field(description="The class of the error, such as `invalid_request_error`.")
    message: str
    details: MessageErrorDetails = Field(description="The error's code and field.")


class MessageError(_Shape):
    """What these routes answer when they cannot do what was asked."""

    type: Literal["error"]
    error: MessageErrorBody


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """Everything needed to answer an error: its kind, the words and the field at fault."""

    kind: ErrorKind
    message: str
    param: str | None = None

    def body(self) -> dict[str, Any]:
        """The error in the one shape of this API."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind.type,
                "param": self.param,
                "code": self.kind.code,
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        """The error in the shape of Anthropic's API."""
        status = self.kind.status
        kind = _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
        details = {"error_code": self.kind.code, "param": self.param}
        error = {"type": kind, "message": self.message, "details": details}
        return {"type": "error", "error": error}


def failure_of(error: BaseException) -> ErrorAnswer:
    """The failure of an exception, by its nearest class in TABLE.

    What no row foresees keeps its words to the log.
    """
    if isinstance(error, RequestError):
        kind = ErrorKind(error.status, error.type, error.code or "invalid_request", error.headers)
        return ErrorAnswer(kind, str(error), error.param)
    for cls in type(error).__mro__:
        if cls in TABLE:
            kind = TABLE[cls]
            if isinstance(error, engine.Refused):
                kind = replace(kind, headers={"Retry-After": str(error.retry_s)})
            return ErrorAnswer(kind, kind.message or str(error) or kind.code)
    if lacks_threads(error):
        return ErrorAnswer(TABLE[engine.OutOfMemory], NO_THREAD)
    return ErrorAnswer(INTERNAL, INTERNAL_MESSAGE)


def ended_by(error: BaseException) -> ErrorAnswer:
    """The failure that ends the running request, be it an answer or an event of its stream.

    Telemetry learns it here: the status of a stream that fails is 200.
    """
    failure = failure_of(error)
    if (context := log_lines_of()) is not None:
        context.notes.error_code = failure.kind.code
        context.notes.error_status = failure.kind.status
    return failure


def describe(error: RequestValidationError) -> RequestError:
    """The first of pydantic's errors as a RequestError in the words of this API."""
    first = error.errors()[0]
    location = list(first["loc"][1:])
    if first["loc"][0] in ("query", "path"):
        name = str(location[0])
        return RequestError(_message(first, name), param=name, code="invalid_value")
    if not isinstance(error.body, dict):
        return _not_an_object(error.body)
    path = _path(first, location, error.body)
    code = _CODES.get(first["type"], "invalid_value")
    return RequestError(_message(first, path), param=path or None, code=code)


def _message(error: Any, path: str) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return f"{path} is required."
    if kind == "extra_forbidden":
        return f"{path} is not a field of this API; remove it or correct its name."
    if kind == "union_tag_not_found":
        return f"{path}.{context['discriminator'].strip(chr(39))} is required."
    if kind == "union_tag_invalid":
        key, tag = context["discriminator"].strip("'"), _shown(context["tag"])
        return f"{path}.{key} is {tag}; it must be one of {context['expected_tags']}."
    if kind in _CODES or isinstance(error["input"], dict | list):
        return f"{path}: {error['msg']}."
    return f"{path} is {_shown(error['input'])}: {error['msg']}."


def _shown(value: Any) -> str:
    """As much of a value as a message can hold; a text may have megabytes."""
    shown = repr(value[:60] if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _path(error: Any, location: Sequence[str | int], body: Any) -> str:
    """The error's place in the body, where pydantic's names for union members are not keys.

    An object may have a key of such a name too, so that a location can be read in several ways:
    the right one ends at what the error is about.
    """
    places = list(_places(location, body, ""))
    right = (path for path, end in places if _is_at(error, end))
    return next(right, places[0][0] if places else "")


def _places(
    location: Sequence[str | int], here: Any, path: str
) -> Iterator[tuple[str, tuple[Any, bool]]]:
    """Every reading: a path, and what it ends at or, of a missing key, the object without it."""
    if not location:
        yield path, (here, True)
        return
    step, rest = location[0], location[1:]
    if isinstance(here, list) and isinstance(step, int) and step < len(here):
        yield from _places(rest, here[step], f"{path}[{step}]")
    if isinstance(here, dict) and isinstance(step, str):
        longer = f"{path}.{step}" if path else step
        if step in here:
            yield from _places(rest, here[step], longer)
        elif not rest:
            yield longer, (here, False)
    yield from _places(rest, here, path)


def _is_at(error: Any, end: tuple[Any, bool]) -> bool:
    value, is_there = end
    about = error["input"]
    if is_there == (error["type"] == "missing"):
        return False
    # Of an object that lacks a key, fields that ask for nothing have been left out.
    is_rest = not is_there and isinstance(about, dict) and about.items() <= value.items()
    return about is value or is_rest


def _not_an_object(body: Any) -> RequestError:
    if body is None or body == b"":
        return RequestError("The body is empty or null; send a JSON object.", code="invalid_json")
    if isinstance(body, bytes):
        return RequestError(
            "The body is not sent as JSON; send the header Content-Type: application/json.",
            code="invalid_content_type",
        )
    return RequestError("The body must be a JSON object.", code="invalid_json")
