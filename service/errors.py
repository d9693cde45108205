"""The error of a request that cannot be served as sent."""

from __future__ import annotations

from collections.abc import Mapping

INVALID_REQUEST = "invalid_request_error"
UNAVAILABLE = "service_unavailable_error"


class RequestError(Exception):
    """A request that cannot be served as sent; `param` is the path of the field at fault."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        type: str = INVALID_REQUEST,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.type = type
        self.param = param
        self.code = code
        self.status = status
        self.headers = headers or {}
