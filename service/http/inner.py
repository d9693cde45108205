"""Requests that a job sends to its own server: through every layer, as those of clients.

They have the caller for whom the job runs and no credentials, and no client waits for them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Scope

from auth.base import Principal
from service.http.streaming import SEND_BODY

INNER: Final = "harmonium.inner"  # the key of a Sender in an ASGI scope, which no client can set


@dataclass(frozen=True, slots=True)
class Sender:
    """For whom a job sends a request."""

    principal: Principal | None  # None: the API is open


@dataclass(slots=True)
class InnerAnswer:
    """The whole answer to a request; status 0: none was given."""

    status: int = 0
    request_id: str = ""
    retry_after_s: float = 1.0  # where it was refused for now
    may_be_retried: bool = True  # soon: a budget that is used up is so for days
    body: bytes = b""

    @property
    def is_refused_for_now(self) -> bool:
        """Whether the same request may be served later."""
        return self.status in (0, 429, 503) and self.may_be_retried


async def send_inside(app: ASGIApp, sender: Sender, path: str, body: bytes) -> InnerAnswer:
    answer, parts = InnerAnswer(), list[bytes]()
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()  # the client stays until this call is cancelled
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            headers = {name.lower(): value.decode("latin-1") for name, value in message["headers"]}
            answer.request_id = headers.get(b"x-request-id", "")
            retry_s = headers.get(b"retry-after", "")
            answer.retry_after_s = float(retry_s) if retry_s.isdigit() else 1.0
            answer.may_be_retried = headers.get(b"x-should-retry") != "false"
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ],
        "client": None,
        "server": None,
        "state": {},
        INNER: sender,
        SEND_BODY: send,
    }
    await app(scope, receive, send)
    answer.body = b"".join(parts)
    return answer
