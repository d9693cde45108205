"""Errors in the shape of Anthropic's API."""

from __future__ import annotations

from typing import Any, Final

from service.http.failures import ErrorAnswer

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(failure: ErrorAnswer) -> dict[str, Any]:
    status = failure.kind.status
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    details = {"error_code": failure.kind.code, "param": failure.param}
    return {
        "type": "error",
        "error": {"type": kind, "message": failure.message, "details": details},
    }


def too_long(number: str, most: int) -> str:
    """The words by which clients of this API know that a prompt does not fit."""
    return f"prompt is too long: {number} tokens > {most} maximum"
