"""How long a request may take and how its caller stands with the limits, in headers."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import RequestError
from service.http.answers import error_response
from service.request import asker
from service.request.asker import Asker
from service.request.terms import TIMEOUT_HEADER

GENERATING_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
# These cost no step of the engine, but this process's time and its store's.
_COUNTED_PATHS = frozenset({"/tokenize", "/detokenize"})
_COUNTED_BELOW = tuple(f"{path}/" for path in sorted(GENERATING_PATHS))
MAX_TIMEOUT_MS = 24 * 3600 * 1000


class AskerMiddleware:
    """Reads what the caller asks of the limits, and adds to the answer what they say."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        added: dict[str, str] = {}

        async def send_with_headers(message: Message) -> None:
            if added and message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(added)
            await send(message)

        try:
            asker.enter(Asker(_timeout_s(Headers(scope=scope).get(TIMEOUT_HEADER)), added))
            runtime, path = scope["app"].state.runtime, scope["path"]
            if scope["method"] == "POST" and path in GENERATING_PATHS:
                await runtime.gate.knock(runtime.engine)
            elif path in _COUNTED_PATHS or path.startswith(_COUNTED_BELOW):
                await runtime.gate.count()
        except RequestError as error:
            await error_response(error, scope["path"])(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


def _timeout_s(given: str | None) -> float | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and 0 < int(given[:9]) <= MAX_TIMEOUT_MS):
        raise RequestError(
            f"{TIMEOUT_HEADER} is {given[:40]!r}; it must be milliseconds, 1 to {MAX_TIMEOUT_MS}.",
            param=TIMEOUT_HEADER,
            code="invalid_value",
        )
    return int(given) / 1000
