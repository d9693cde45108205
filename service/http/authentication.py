"""Who calls and what they may do, decided before anything of a request's body is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from auth import audit, client_certificate
from auth.base import (
    Authenticator,
    AuthError,
    Credentials,
    Forbidden,
    InvalidCredentials,
    MissingCredentials,
    Principal,
)
from auth.base import Scope as Access
from auth.key_source import KeysUnavailable
from auth.throttle import Throttle, TooManyFailures
from service.http.answers import error_response
from service.http.route_scopes import OPEN_PATHS, scope_of
from service.http.tls import CERTIFICATE
from service.request import caller
from service.request.record import note

# What metrics call a refusal, and how severe its line in the audit log is: who is slowed could
# otherwise fill the log.
_KINDS: dict[type[AuthError], tuple[str, int]] = {
    MissingCredentials: ("missing", logging.INFO),
    InvalidCredentials: ("invalid", logging.WARNING),
    Forbidden: ("forbidden", logging.WARNING),
    TooManyFailures: ("throttled", logging.DEBUG),
    KeysUnavailable: ("unavailable", logging.WARNING),
}


class Authentication:
    """Asks the authenticator; `on_failure` is told the kind of each refusal."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        on_failure: Callable[[str], None],
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._on_failure = on_failure
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                with note("auth"):
                    principal = await self._identify(scope)
                _enter(principal, scope)
                _check_scope(principal, scope["path"])
            except AuthError as error:
                kind, level = _KINDS[type(error)]
                self._on_failure(kind)
                _audit(scope, "auth.denied", level, reason=str(error))
                await error_response(error, scope["path"])(scope, receive, send)
                return
            is_scrape = scope_of(scope["path"]) is Access.METRICS  # polled for ever
            _audit(scope, "auth.granted", logging.DEBUG if is_scrape else logging.INFO)
        await self._app(scope, receive, send)

    async def _identify(self, scope: Scope) -> Principal:
        address = _address(scope)
        for credentials in _presented(scope):
            self._throttle.check(address, credentials)
            try:
                principal = await self._authenticator.authenticate(credentials)
            except InvalidCredentials:
                self._throttle.failed(address)
                raise
            if principal is not None:
                self._throttle.accepted(address, credentials)
                return principal
        raise MissingCredentials("no credentials")


def _presented(scope: Scope) -> Iterator[Credentials]:
    headers = Headers(scope=scope)
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if value.strip():
        yield Credentials(scheme.lower(), _text(value.strip()))
    key = headers.get("x-api-key", "").strip()
    if key:
        yield Credentials("x-api-key", _text(key))
    if name := scope["state"].get(CERTIFICATE):
        yield Credentials(client_certificate.SCHEME, name)


def _text(value: str) -> str:
    """A header's value as its sender meant it: HTTP names no encoding beyond ASCII, so that some
    clients send UTF-8 and others Latin-1, as which Starlette reads everything."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _enter(principal: Principal, scope: Scope) -> None:
    """Make the caller known to the log, to metrics and to the code of the request."""
    scope["state"]["caller"] = principal.id
    scope["state"]["principal"] = principal
    caller.enter(principal)


def _check_scope(principal: Principal, path: str) -> None:
    needed = scope_of(path)
    if needed not in principal.scopes:
        raise Forbidden(f"the scope {needed} is missing")


def _audit(scope: Scope, event: str, level: int, **more: object) -> None:
    state = scope["state"]
    audit.write(
        event,
        level=level,
        caller=state.get("caller"),
        address=_address(scope),
        method=scope["method"],
        path=scope["path"],
        request=state["request_id"],
        **more,
    )


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "unknown"
