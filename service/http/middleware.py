"""What surrounds every request: its context, who may come in, its log line, the last resort for
errors.

Pure ASGI: nothing here looks at a streamed body.

A browser lets any page send requests to loopback, and names that page in `Origin`. What the page
cannot do is to leave that out, or to pass for a page from loopback. A page whose own name leads to
loopback (DNS rebinding) has no need of `Origin`, but the browser then names it in `Host`.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from auth.address import is_loopback
from auth.base import AuthError, Principal
from engines.lines_per_address import LinesPerAddress, left_out
from service.admission.lifecycle import Phase
from service.errors import RequestError
from service.http.answers import NO_STORE, error_response
from service.http.authentication import Authentication
from service.http.inner import INNER, Sender
from service.http.paths import ROW, Paths
from service.http.streaming import SEND_BODY
from service.request import (
    CONTEXT,
    METRICS_HEADER,
    TIMEOUT_HEADER,
    RequestContext,
    enter_log,
    trace_of,
)
from service.runtime import Runtime
from service.telemetry.results import result_of

_REMEDY = "set NIM_API_KEYS to serve others"
# Reserved, so that no name under them can be registered: RFC 6761 gives the first to loopback,
# and containers reach their host as host.docker.internal.
_OWN_ENDINGS = (".localhost", ".internal")

log = logging.getLogger("harmonium.access")
REQUEST_ID: Final = "X-Request-Id"
MAX_TIMEOUT_MS: Final = 24 * 3600 * 1000
_VALID_ID: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class NoForeignPages:
    """Refuses requests of pages that come neither from loopback nor from a listed origin."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = frozenset(allowed)

    def check(self, headers: Headers) -> None:
        """Raise RequestError for a request from another origin."""
        error = self._fault(headers)
        if error is not None:
            raise error

    def _fault(self, headers: Headers) -> RequestError | None:
        origin, host = headers.get("origin"), headers.get("host")
        if host is not None and not _is_own(f"//{host}"):
            return _refusal(
                "Host", "foreign_host", f"it has no keys and refuses the host name {host[:80]!r}"
            )
        if origin is not None and not self._is_welcome(origin):
            message = "it has no keys and accepts no requests from other origins"
            remedy = "add the origin to NIM_CORS_ALLOW_ORIGINS, or "
            return _refusal("Origin", "foreign_page", message, remedy)
        return None

    def _is_welcome(self, origin: str) -> bool:
        return _is_own(origin) or origin in self._allowed or "*" in self._allowed


def _refusal(param: str, code: str, reason: str, remedy: str = "") -> RequestError:
    message = f"This server accepts only local programs: {reason}; {remedy}{_REMEDY}."
    return RequestError(message, param=param, code=code, status=403)


def _is_own(url: str) -> bool:
    """Whether the URL's host can only be this machine."""
    try:
        name = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return is_loopback(name) or name.endswith(_OWN_ENDINGS)


class Cors(CORSMiddleware):
    """Starlette's CORS, but a refused preflight is an error like any other, not plain text."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Starlette's answer to a preflight; a refusal in the one error shape."""
        answer = super().preflight_response(request_headers)
        answer.headers["Cache-Control"] = NO_STORE  # browsers have a cache of their own for these
        return answer if answer.status_code == 200 else _Refusal(answer)


class _Refusal(Response):
    """The error answer to a refused preflight, with the headers of Starlette's."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self._reason = bytes(answer.body).decode()
        self._headers = answer.headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = RequestError(
            f"{self._reason}: NIM_CORS_ALLOW_ORIGINS lists the pages that may send requests here.",
            param="Origin",
            code="cors_refused",
        )
        answer = error_response(error, scope)
        for name, value in self._headers.items():
            if name not in ("content-length", "content-type"):
                answer.headers[name] = value
        await answer(scope, receive, send)


class RequestMiddleware:
    """Makes each request's context, refuses who may not enter, and answers what escaped as an
    error.

    `authentication` or `pages` decide who may enter; with neither, everybody may.
    """

    def __init__(
        self,
        app: ASGIApp,
        runtime: Runtime,
        paths: Paths,
        authentication: Authentication | None = None,
        pages: NoForeignPages | None = None,
    ) -> None:
        self.app = app
        self.runtime = runtime
        self.paths = paths
        self.authentication = authentication
        self.pages = pages
        self.lines = LinesPerAddress()  # of callers who have not shown who they are

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request as one exchange, from its id to its log line."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await _Exchange(self, scope, send).run(receive)


class _Exchange:
    """One request and its answer, from the context to the log line."""

    def __init__(self, around: RequestMiddleware, scope: Scope, send: Send) -> None:
        self._around = around
        self._runtime = around.runtime
        self._scope = scope
        self._send = send
        self._path: str = scope["path"]
        self._row = scope[ROW] = around.paths.row(self._path)
        self._headers = Headers(scope=scope)
        self._given_id = self._headers.get(REQUEST_ID)
        self._has_valid_id = self._given_id is None or bool(_VALID_ID.fullmatch(self._given_id))
        self._status = 0  # 0: no answer was begun
        self._started_at = 0.0
        self._upgraded_s: float | None = None  # after it: the rest is a WebSocket's life

    async def run(self, receive: Receive) -> None:
        """Serve the request; whatever happens it is counted, logged and traced."""
        started_at = self._started_at = time.perf_counter()
        self._scope.setdefault(SEND_BODY, self._send)
        self._enter(self._first_context())
        try:
            answer = await self._admitted()
            await answer(self._scope_for_app(), receive, self._send_with_headers)
        except Exception as error:
            log.exception("request %s failed", self._context.id)
            if self._status:
                raise  # too late for an answer: the server closes the connection
            answer = error_response(error, self._scope)
            await answer(self._scope, receive, self._send_with_headers)
        finally:
            seconds = time.perf_counter() - started_at
            self._log(seconds)
            answered_s = seconds if self._upgraded_s is None else self._upgraded_s
            self._runtime.metrics.count_answer(self._context, self._status, answered_s)
            if self._scope["method"] == "POST" and self._row.is_generating:
                self._count_result()
            self._runtime.telemetry.end(self._context, self._status)
            # Its generation knows the context too: a thousand choices are to go now, not in a long
            # turn of the garbage collector.
            self._context.notes.generation = None

    def _count_result(self) -> None:
        result = result_of(self._context, self._status)
        if result == "error" and self._runtime.lifecycle.phase is Phase.DRAINING:
            result = "excluded"  # cut at the end of the grace
        self._runtime.metrics.count_result(self._context.route, result)

    def _scope_for_app(self) -> Scope:
        # RFC 9110 §9.1: HEAD is taken wherever GET is; the server below leaves the body out.
        if self._scope["method"] == "HEAD":
            return {**self._scope, "method": "GET"}
        return self._scope

    def _first_context(self) -> RequestContext:
        """The context without caller and deadline."""
        given_id = self._given_id if self._has_valid_id else None
        id = given_id or f"req-{uuid.uuid4().hex}"
        context = RequestContext(
            id,
            self._row.label,
            trace=trace_of(self._headers),
            is_detached=INNER in self._scope,
            shows_metrics=self._headers.get(METRICS_HEADER) in ("1", "true"),
        )
        return replace(context, trace=self._runtime.telemetry.begin(context, self._scope))

    def _enter(self, context: RequestContext) -> None:
        self._context = self._scope[CONTEXT] = context
        enter_log(context)

    async def _admitted(self) -> ASGIApp:
        """The application, or the refusal that answers instead."""
        try:
            self._check_id()
            await self._let_in()
            gate, context = self._runtime.gate, self._context
            if not context.is_detached:  # the server's limit is for clients that wait
                timeout_s = _timeout_s(self._headers.get(TIMEOUT_HEADER))
                self._enter(replace(context, deadline=gate.deadline(timeout_s)))
            if self._scope["method"] == "POST" and self._row.is_generating:
                await gate.precheck(self._context, self._runtime.engine)
            elif self._row.is_counted or self._row.is_websocket:
                await gate.count(self._context)
        except (RequestError, AuthError) as error:
            return error_response(error, self._scope)
        return self._around.app

    def _check_id(self) -> None:
        if not self._has_valid_id:
            raise RequestError(
                f"{REQUEST_ID} must be 1 to 128 letters, digits or any of ._:/+=-; "
                "correct it or leave it out.",
                param=REQUEST_ID,
                code="invalid_request_id",
            )

    async def _let_in(self) -> None:
        """Make known who asks; raises AuthError or RequestError for callers who may not."""
        authentication, pages = self._around.authentication, self._around.pages
        sender: Sender | None = self._scope.get(INNER)
        if sender is not None:
            self._enter(replace(self._context, principal=sender.principal))
        elif authentication is not None and not self._needs_no_key(authentication):
            principal: Principal = await authentication.identify(self._scope, self._context)
            self._enter(replace(self._context, principal=principal))
            authentication.permit(self._scope, self._context)
        elif pages is not None:
            pages.check(self._headers)

    def _needs_no_key(self, authentication: Authentication) -> bool:
        """Whether no key is needed; raises RequestError for too many requests without one."""
        if self._row.scope is None:
            return True
        if not self._row.is_open(self._scope["method"], self._runtime.read_without_key):
            return False
        if not authentication.is_anonymous(self._scope):
            return False
        if not self._row.is_counted:  # those that count have the limits of callers
            authentication.count_read(self._scope)
        return True

    async def _send_with_headers(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.update(self._context.notes.headers)
            headers[REQUEST_ID] = self._context.id
            headers["X-Content-Type-Options"] = "nosniff"
            # Shared caches leave alone what was asked for with `Authorization`, and only that: not
            # with `X-API-Key` or a certificate. The pages alone say what else may be done.
            headers.setdefault("Cache-Control", NO_STORE)
            seconds = time.perf_counter() - self._started_at
            headers["OpenAI-Processing-Ms"] = f"{1000 * seconds:.0f}"
            if self._status == 101:
                self._upgraded_s = seconds
            if (name := self._row.dialect.id_header) is not None:
                headers[name] = self._context.id
        await self._send(message)

    def _log(self, seconds: float) -> None:
        code = self._context.notes.error_code
        context = self._context
        is_quiet = self._row.is_quiet or context.notes.is_quiet or context.is_detached
        num_left_out = None if is_quiet else self._num_left_out()
        log.log(
            logging.DEBUG if num_left_out is None else logging.INFO,
            "%s %s -> %s%s in %.0f ms, request %s%s%s%s",
            self._scope["method"],
            _printable(self._path),
            self._status or "client left",
            f" ({code})" if code else "",
            seconds * 1000,
            self._context.id,
            f" of {self._context.principal.id}" if self._context.principal else "",
            self._context.notes.summary,
            left_out(num_left_out or 0),
            extra={
                "access": self._access_fields(seconds),
                "brief": f"{self._scope['method']} -> {self._status or 'client left'}",
            },
        )

    def _num_left_out(self) -> int | None:
        """How many lines of a caller without a name were left out before; None: this one is, too.

        Where no key is needed, only pages that were refused are strangers.
        """
        is_stranger = self._around.authentication is not None or self._status == 403
        if self._context.principal is not None or not is_stranger:
            return 0
        client = self._scope.get("client")
        return self._around.lines.take(client[0] if client else "unknown")

    def _access_fields(self, seconds: float) -> dict[str, object]:
        """The line as fields, for JSON logs."""
        client, context = self._scope.get("client"), self._context
        return {
            "method": self._scope["method"],
            "path": _printable(self._path),
            "route": context.route,
            "status": self._status or None,
            "error_code": context.notes.error_code,
            "duration_ms": round(seconds * 1000, 1),
            "client": client[0] if client else None,
            "caller": context.principal.id if context.principal else None,
            "tenant": context.tenant or None,
            **context.notes.usage,
        }


def _timeout_s(given: str | None) -> float | None:
    if given is None:
        return None
    # Nine digits at most: int() takes quadratic time for a long text.
    if not (given.isascii() and given.isdigit() and 0 < int(given[:9]) <= MAX_TIMEOUT_MS):
        raise RequestError(
            f"{TIMEOUT_HEADER} is {given[:40]!r}; it must be milliseconds, 1 to {MAX_TIMEOUT_MS}.",
            param=TIMEOUT_HEADER,
            code="invalid_value",
        )
    return int(given) / 1000


def _printable(path: str) -> str:
    # A path may hold line breaks, which would forge a line of the log, and be as long as a head.
    return path[:200].encode("unicode_escape").decode("ascii")
