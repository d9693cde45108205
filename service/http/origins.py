"""Pages of other origins: kept from an open server on loopback, let in where the operator says so.

A browser lets any page send requests to loopback, and names that page in `Origin`. What the page
cannot do is to leave that out, or to pass for a page from loopback. A page whose own name leads to
loopback (DNS rebinding) has no need of `Origin`, but the browser then names it in `Host`.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from auth.address import is_loopback
from service.errors import RequestError
from service.http.answers import error_response

_REMEDY = "set NIM_API_KEYS to serve others"
# Reserved, so that no name under them can be registered: RFC 6761 gives the first to loopback,
# and containers reach their host as host.docker.internal.
_OWN_ENDINGS = (".localhost", ".internal")


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
                "Host",
                "foreign_host",
                f"it has no keys and does not serve the host name {host[:80]!r}",
            )
        if origin is not None and not self._is_welcome(origin):
            message = "it has no keys and accepts no requests from other origins"
            remedy = "add the origin to NIM_CORS_ALLOW_ORIGINS, or "
            return _refusal("Origin", "foreign_page", message, remedy)
        return None

    def _is_welcome(self, origin: str) -> bool:
        return _is_own(origin) or origin in self._allowed or "*" in self._allowed


def _refusal(param: str, code: str, reason: str, remedy: str = "") -> RequestError:
    message = f"This server accepts local programs only: {reason}; {remedy}{_REMEDY}."
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
