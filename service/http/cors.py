"""Pages of other origins, where the operator lets them in."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import RequestError
from service.http.answers import error_response


class Cors(CORSMiddleware):
    """The library's, but a refused preflight is an error like any other, not plain text."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        return answer if answer.status_code == 200 else _Refusal(answer)


class _Refusal(Response):
    """An answer in the shape of its route, with the headers of the library's."""

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
