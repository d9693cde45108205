"""An open server on loopback is for the programs of its machine, not for pages in its browser.

A browser lets any page send requests to loopback, and names that page in `Origin`. What the page
cannot do is to leave that out, or to pass for a page from loopback.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from auth.address import is_loopback
from service.api.responses import error_response
from service.errors import RequestError

_MESSAGE = "This server is not for pages from elsewhere while it has no keys; set NIM_API_KEYS."


class NoForeignPages:
    """Refuses requests of pages that do not come from loopback themselves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is not None and not _is_local(origin):
            error = RequestError(_MESSAGE, param="Origin", code="foreign_page", status=403)
            await error_response(error, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_local(origin: str) -> bool:
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
