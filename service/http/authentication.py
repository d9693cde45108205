"""Who calls and what they may do, decided before anything of a request's body is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from auth import audit
from auth.authenticators import CERTIFICATE_SCHEME
from auth.base import (
    Authenticator,
    AuthError,
    Credentials,
    Forbidden,
    InvalidCredentials,
    KeysUnavailable,
    MissingCredentials,
    Principal,
)
from auth.base import Scope as Access
from auth.throttle import Throttle, ThrottlePolicy, TooManyFailures
from engines.lines_per_address import LinesPerAddress
from service.errors import RequestError
from service.http.paths import ROW
from service.http.tls import CERTIFICATE
from service.request import RequestContext

# What metrics call a refusal, and how severe its line in the audit log is: a throttled caller could
# otherwise fill the log.
_KINDS: dict[type[AuthError], tuple[str, int]] = {
    MissingCredentials: ("missing", logging.INFO),
    InvalidCredentials: ("invalid", logging.WARNING),
    Forbidden: ("forbidden", logging.WARNING),
    TooManyFailures: ("throttled", logging.DEBUG),
    KeysUnavailable: ("unavailable", logging.WARNING),
}

# Those of which an address can cause thousands of lines: a scanner does.
_BOUNDED = (MissingCredentials, KeysUnavailable)


# Of reads without a key, by address and worker. llm-d's endpoint picker reads metrics 20 times a
# second. The render routes have no such bound: routers render each prompt of all their clients
# there, from one address, in turns that leave the event loop half of the time.
_READS: Final = ThrottlePolicy(num_free=200, interval_s=0.02)


class Authentication:
    """Identifies callers by an authenticator; `on_failure` gets the kind of each refusal."""

    def __init__(self, authenticator: Authenticator, on_failure: Callable[[str], None]) -> None:
        self._authenticator = authenticator
        self._on_failure = on_failure
        self._throttle = Throttle()
        self._reads = Throttle(_READS)
        self._lines = LinesPerAddress()

    def count_read(self, scope: Scope) -> None:
        """Count a read that needs no key; raises RequestError with Retry-After for too many."""
        try:
            self._reads.failed(_address(scope))
        except TooManyFailures as error:
            raise RequestError(
                "Your address has sent too many requests without a key; send a key with the scope "
                "of this route, or fewer requests.",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            ) from error

    def is_anonymous(self, scope: Scope) -> bool:
        """Whether a request presents no credentials at all."""
        return next(_presented(scope), None) is None

    async def identify(self, scope: Scope, context: RequestContext) -> Principal:
        """The principal who sent the request; raises AuthError when its credentials do not tell."""
        try:
            with context.notes.phase("auth"):
                return await self._identify(scope)
        except AuthError as error:
            self._deny(error, scope, context)
            raise

    def permit(self, scope: Scope, context: RequestContext) -> None:
        """Raise Forbidden unless the principal of the context may use the route."""
        needed = scope[ROW].scope
        if context.principal is None or needed not in context.principal.scopes:
            error = Forbidden(f"the scope {needed} is missing")
            self._deny(error, scope, context)
            raise error
        is_scrape = needed is Access.METRICS  # polled for ever
        _audit(scope, context, "auth.granted", logging.DEBUG if is_scrape else logging.INFO)

    def _deny(self, error: AuthError, scope: Scope, context: RequestContext) -> None:
        kind, level = _KINDS[type(error)]
        num_left_out: int | None = 0
        if isinstance(error, _BOUNDED):
            num_left_out = self._lines.take(_address(scope))
        if num_left_out is None:
            level = logging.DEBUG
        context.notes.is_quiet = level == logging.DEBUG
        self._on_failure(kind)
        more = {"left_out": num_left_out or None}  # lines of this address before
        _audit(scope, context, "auth.denied", level, reason=str(error), **more)

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
    if name := scope.get("state", {}).get(CERTIFICATE):
        yield Credentials(CERTIFICATE_SCHEME, name)


def _text(value: str) -> str:
    """A header's value as its sender meant it: HTTP names no encoding beyond ASCII, so that some
    clients send UTF-8 and others Latin-1, as which Starlette reads everything."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _audit(scope: Scope, context: RequestContext, event: str, level: int, **more: object) -> None:
    audit.write(
        event,
        level=level,
        caller=context.principal.id if context.principal else None,
        address=_address(scope),
        method=scope["method"],
        path=scope["path"],
        request=context.id,
        **more,
    )


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "unknown"
