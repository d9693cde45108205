"""What a connection gets that is one too many: word of that, and true answers to probes."""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.responses import error_response
from service.api.route_scopes import OPEN_PATHS
from service.errors import UNAVAILABLE, RequestError

NUM_SPARE: Final = 64  # connections beyond the limit; more are closed without a word


class Surplus:
    """Stands before the application on such a connection, as long as there are so many."""

    def __init__(self, app: ASGIApp, connections: Sized, max_connections: int) -> None:
        self._app = app
        self._connections = connections
        self._max_connections = max_connections
        self._error = RequestError(
            f"This server has {max_connections} connections open, which is its limit "
            "(NIM_MAX_CONNECTIONS); try again in a moment.",
            status=503,
            type=UNAVAILABLE,
            code="too_many_connections",
            headers={"Retry-After": "1", "Connection": "close"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_crowded = len(self._connections) > self._max_connections
        # A busy server must not be taken for a dead one.
        if not is_crowded or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        else:
            await error_response(self._error, scope["path"])(scope, receive, send)
