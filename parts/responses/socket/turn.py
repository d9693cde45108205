"""One turn of a WebSocket: a client event as a request of its own, its events as messages.

A turn goes through the whole application, as a POST with the headers of the handshake would. So it
has its own id, line in the log, metrics, spans, deadline, limits of the body and of the caller, and
a key that was revoked meanwhile ends nothing but its own turns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from parts.responses.socket.held import HeldResponses, Lane, PastOfTurn
from parts.responses.store.base import PastRecords, ResponseRecord
from service.http.body import EDIT_BODY, BodyError
from service.http.failures import INTERNAL, INTERNAL_MESSAGE, ErrorAnswer
from service.http.streaming import SEND_BODY
from service.http.websocket import Socket
from service.known_texts import KNOWN_TEXTS, KnownTexts

TURN: Final = "harmonium.turn"  # a SocketTurn, in the scope of its request

log = logging.getLogger(__name__)

_KEPT: Final = ("asgi", "http_version", "server", "client", "scheme", "root_path", "path")
_KEPT_TOO: Final = ("raw_path", "query_string")
_NOT_OF_TURNS: Final = ("connection", "content-", "ignored", "sec-websocket-", "transfer-encoding")
_ID: Final = "x-request-id"
_MAX_ID_CHARS: Final = 112  # of the connection's; a turn adds its number
_STATUS_OF: Final = {"invalid_prompt": 400, "rate_limit_exceeded": 429}
_ERROR: Final = b"event: error\n"


@dataclass(frozen=True, slots=True)
class Line:
    """What all turns of a connection have alike."""

    number: int
    id: str
    app: ASGIApp
    scope: Scope  # of the handshake
    socket: Socket
    held: HeldResponses
    texts: Callable[[], KnownTexts]  # of its prompts


class SocketTurn:
    """A `response.create` on its lane; the scope of its request has it."""

    def __init__(self, line: Line, stream_id: str | None, number: int, message: bytes) -> None:
        self._line = line
        self._stream_id = stream_id
        self._id = f"{line.id[:_MAX_ID_CHARS]}.{number}"
        self._message: bytes | None = message
        self.num_bytes = len(message)
        self._parent_id: str | None = None
        self._status = 0
        self._is_stream = False
        self._headers: dict[str, str] = {}
        self._body = b""
        self._past: PastOfTurn | None = None
        self._is_held = False
        self.generates = True

    async def run(self) -> None:
        """Serve the turn; whatever comes of it, the connection stays open."""
        known = KNOWN_TEXTS.set(self._line.texts())
        try:
            await self._line.app(self._scope(), self._receive, self._send)
        except Exception:
            log.debug("turn %s failed", self._id, exc_info=True)  # the application has logged it
            if not self._is_stream:
                await self.refuse(ErrorAnswer(INTERNAL, INTERNAL_MESSAGE))
        finally:
            KNOWN_TEXTS.reset(known)
        if self._parent_id is not None and not self._is_held:
            self._line.held.evict(self._line.number, self._parent_id)

    async def refuse(self, failure: ErrorAnswer) -> None:
        """Answer with an error before anything else of the turn."""
        body = {"status": failure.kind.status, **failure.body()}
        await self._line.socket.send([_event({"type": "error", **body}, self._stream_id)])

    # What the route asks of it

    def past(self, store: PastRecords) -> PastOfTurn:
        """Where the turn looks for what it continues."""
        self._past = PastOfTurn(self._line.held, self._line.number, store)
        return self._past

    def hold(self, record: ResponseRecord) -> None:
        """Keep the turn's response for the next one."""
        lane: Lane = (self._line.number, self._stream_id)
        earlier = self._past.records if self._past else ()
        self._is_held = True
        self._line.held.put(lane, record, earlier)

    # The request

    def _scope(self) -> Scope:
        given = self._line.scope
        headers = [
            (name, value)
            for name, value in given["headers"]
            if not name.decode("latin-1").startswith((*_NOT_OF_TURNS, _ID, "upgrade"))
        ]
        headers += [(b"content-type", b"application/json"), (_ID.encode(), self._id.encode())]
        return {
            **{name: given[name] for name in (*_KEPT, *_KEPT_TOO) if name in given},
            "type": "http",
            "method": "POST",
            "headers": headers,
            "state": dict(given.get("state", {})),
            SEND_BODY: self._send,
            EDIT_BODY: self._edit,
            TURN: self,
        }

    def _edit(self, body: Any) -> Any:
        """The body of POST /v1/responses in a client event; raises BodyError."""
        if not isinstance(body, dict):
            raise BodyError("A client event must be a JSON object.")
        self._check(body, "stream", (True,), "a WebSocket streams always")
        self._check(body, "stream_options", (), "a WebSocket has no options of streams")
        self._check(body, "background", (False,), "a WebSocket has no background responses")
        self._check(body, "generate", (True, False), "it must be true or false")
        options = body.get("prompt_cache_options")
        is_prewarm = isinstance(options, dict) and options.get("prewarm") is True
        self.generates = body.get("generate") is not False and not is_prewarm
        if body.get("cache_salt") is not None:
            KNOWN_TEXTS.set(None)  # the connection's client serves several
        parent_id = body.get("previous_response_id")
        self._parent_id = parent_id if isinstance(parent_id, str) else None
        own = ("type", "stream_id", "generate", "background")
        return {**{name: body[name] for name in body if name not in own}, "stream": True}

    @staticmethod
    def _check(body: Mapping[str, Any], name: str, allowed: tuple[object, ...], why: str) -> None:
        value = body.get(name)
        if value is not None and not any(value is each for each in allowed):
            raise BodyError(
                f"{name} cannot be {str(value)[:40]} here: {why}; leave it out.",
                code="unsupported_parameter",
                param=name,
            )

    async def _receive(self) -> Message:
        if self._message is not None:
            message, self._message = self._message, None
            return {"type": "http.request", "body": message, "more_body": False}
        await self._line.socket.ended.wait()
        return {"type": "http.disconnect"}

    # The answer

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = Headers(raw=message.get("headers", []))
            self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
            shown = ("x-request-id", "retry-after")
            self._headers = {name: headers[name] for name in shown if name in headers}
        elif self._is_stream:
            await self._line.socket.send(list(_texts(message.get("body", b""), self._stream_id)))
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._line.socket.send([self._error()])

    def _error(self) -> bytes:
        error = msgspec.json.decode(self._body)["error"]
        error["headers"] = self._headers
        body = {"type": "error", "status": self._status, "error": error}
        return _event(body, self._stream_id)


def _texts(body: bytes, stream_id: str | None) -> Iterator[bytes]:
    """The data of each of these server-sent events; comments and `[DONE]` have no counterpart."""
    start = b"" if stream_id is None else b'{"stream_id":' + msgspec.json.encode(stream_id) + b","
    for block in body.split(b"\n\n"):
        if not block.startswith(b"event: "):
            continue
        data = block[block.index(b"\ndata: ") + 7 :]
        if block.startswith(_ERROR):
            data = _with_error(data)
        yield start + data[1:] if start else data


def _with_error(data: bytes) -> bytes:
    """An error in the middle of a stream has its fields beside `type`; a WebSocket's, in `error`
    too."""
    event = msgspec.json.decode(data)
    status = _STATUS_OF.get(event["code"], 500)
    kind = "server_error" if status == 500 else "invalid_request_error"
    error = {"type": kind, **{name: event[name] for name in ("code", "message", "param")}}
    return msgspec.json.encode({**event, "status": status, "error": error})


def _event(body: dict[str, Any], stream_id: str | None) -> bytes:
    return msgspec.json.encode(body if stream_id is None else {**body, "stream_id": stream_id})
