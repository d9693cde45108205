"""A server on loopback that answers what it is given: lists and files of any size and shape."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

from tests import loopback


@dataclass(frozen=True)
class Answer:
    """What is sent for one path."""

    body: bytes = b""
    chunks: Callable[[], Iterable[bytes]] | None = None  # sent in the body's place, without length
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None  # told to HEAD, and before chunks, if not the body's
    has_ranges: bool = True
    cut_after: int | None = None  # bytes of the body, then the connection is closed


class Server(loopback.HttpServer):
    """Says nothing of clients that leave in the middle."""

    def handle_error(self, request: Any, client_address: Any) -> None: ...


@contextmanager
def lying(answers: Mapping[str, Answer]) -> Iterator[str]:
    """Serve `answers` by path, with their query; yields the address."""
    server = Server((loopback.ADDRESS, 0), _handler(answers))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://{loopback.IN_URL}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(answers: Mapping[str, Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            answer = answers.get(unquote(self.path.lstrip("/")), Answer(status=404))
            size = len(answer.body) if answer.size is None else answer.size
            self._begin(answer.status, {**answer.headers, "Content-Length": str(size)})

        def do_GET(self) -> None:
            answer = answers.get(unquote(self.path.lstrip("/")), Answer(status=404))
            with suppress(ConnectionError):
                if answer.chunks is not None:
                    self._stream(answer.chunks(), answer)
                else:
                    self._send(answer)

        def _stream(self, chunks: Iterable[bytes], answer: Answer) -> None:
            if answer.size is not None:
                self._begin(answer.status, {"Content-Length": str(answer.size), **answer.headers})
                for chunk in chunks:
                    self.wfile.write(chunk)
                return
            self._begin(answer.status, {"Transfer-Encoding": "chunked", **answer.headers})
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")

        def _send(self, answer: Answer) -> None:
            body, status, headers = answer.body, answer.status, dict(answer.headers)
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            if asked and answer.has_ranges and status == 200:
                start, end = int(asked[1]), min(int(asked[2]) + 1, len(body))
                span = {"Content-Range": f"bytes {start}-{end - 1}/{len(body)}"}
                status, body, headers = 206, body[start:end], span | headers
                if not body:
                    status, headers = 416, {"Content-Range": f"bytes */{len(answer.body)}"}
            self._begin(status, {"Content-Length": str(len(body)), **headers})
            self.wfile.write(body[: answer.cut_after])
            self.close_connection = answer.cut_after is not None

        def _begin(self, status: int, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            facts = {"ETag": '"e"', "Last-Modified": "Mon, 02 Mar 2026 10:00:00 GMT"}
            for name, value in {**facts, **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    return Handler
