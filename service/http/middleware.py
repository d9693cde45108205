"""What surrounds every request: its id, its log line, the last resort for errors.

Pure ASGI: nothing here looks at a streamed body.
"""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import RequestError
from service.http.answers import ANTHROPIC_PATH, error_response
from service.http.route_scopes import OPEN_PATHS
from service.request import record

log = logging.getLogger("harmonium.access")

REQUEST_ID = "X-Request-Id"
# Polled for ever: their log lines are for debugging.
_QUIET_PATHS = OPEN_PATHS | {"/v1/metrics", "/metrics"}
_VALID_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestContext:
    """Gives each request an id and a log line, and turns what escaped into an error answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Exchange(self._app, scope, send).run(receive)


class _Exchange:
    """One request and its answer."""

    def __init__(self, app: ASGIApp, scope: Scope, send: Send) -> None:
        self._app = app
        self._scope = scope
        self._send = send
        self._status = 0  # 0: no answer was begun
        headers = Headers(scope=scope)
        self._given_id = headers.get(REQUEST_ID)
        self._is_valid = self._given_id is None or bool(_VALID_ID.fullmatch(self._given_id))
        given_id = self._given_id if self._is_valid else None
        self._request_id = given_id or f"req-{uuid.uuid4().hex}"
        state = scope.setdefault("state", {})
        self._record = record.record_of(self._request_id, scope["path"], state, headers)

    async def run(self, receive: Receive) -> None:
        started_at = time.perf_counter()
        self._scope["state"]["request_id"] = self._request_id
        self._scope["state"]["send_body"] = self._send
        record.enter(self._record)
        telemetry = self._scope["app"].state.runtime.telemetry
        telemetry.begin(self._record, self._scope)
        try:
            if self._is_valid:
                await self._app(self._scope, receive, self._send_with_id)
            else:
                await self._refuse_id(receive)
        except Exception as error:
            log.exception("request %s failed", self._request_id)
            if self._status:
                raise  # too late for an answer: the server closes the connection
            await error_response(error, self._scope["path"])(
                self._scope, receive, self._send_with_id
            )
        finally:
            seconds = time.perf_counter() - started_at
            self._log(seconds)
            metrics = self._scope["app"].state.runtime.metrics
            metrics.count_answer(self._record, self._status, seconds)
            telemetry.end(self._record, self._status)

    async def _refuse_id(self, receive: Receive) -> None:
        error = RequestError(
            f"{REQUEST_ID} must be 1 to 128 letters, digits or any of ._:/+=-; "
            "correct it or leave it out.",
            param=REQUEST_ID,
            code="invalid_request_id",
        )
        await error_response(error, self._scope["path"])(self._scope, receive, self._send_with_id)

    async def _send_with_id(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = self._request_id
            if self._scope["path"].startswith(ANTHROPIC_PATH):
                headers["Request-Id"] = self._request_id  # the name that Anthropic's clients read
        await self._send(message)

    def _log(self, seconds: float) -> None:
        path, state = self._scope["path"], self._scope["state"]
        caller = f" of {state['caller']}" if "caller" in state else ""
        log.log(
            logging.DEBUG if path in _QUIET_PATHS else logging.INFO,
            "%s %s -> %s in %.0f ms, request %s%s%s",
            self._scope["method"],
            _printable(path),
            self._status or "client left",
            seconds * 1000,
            self._request_id,
            caller,
            state.get("summary", ""),
            extra={"access": self._access_fields(seconds)},
        )

    def _access_fields(self, seconds: float) -> dict[str, object]:
        """The line as fields, for logs that machines read."""
        client = self._scope.get("client")
        return {
            "method": self._scope["method"],
            "path": _printable(self._scope["path"]),
            "route": self._record.route,
            "status": self._status or None,
            "error_code": self._record.error_code,
            "duration_ms": round(seconds * 1000, 1),
            "client": client[0] if client else None,
            "caller": self._scope["state"].get("caller"),
            "tenant": self._record.tenant_id or None,
            **self._record.usage,
        }


def _printable(path: str) -> str:
    return path[:200].encode("unicode_escape").decode("ascii")
