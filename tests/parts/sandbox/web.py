"""A web server of this machine, whose answers a test gives by path, and its requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# A status, headers and a body; None: the connection is closed.
Answer = tuple[int, Mapping[str, str], bytes]
HTML = {"content-type": "text/html; charset=utf-8"}


@dataclass
class Web:
    """What is served, and what was asked for: the line and the headers of each request."""

    port: int = 0
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(answers: Mapping[str, Answer]) -> Iterator[Web]:
    web = Web(answers=dict(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.asked.append((self.path, dict(self.headers)))
            status, headers, body = web.answers.get(
                self.path.partition("?")[0], (404, {"content-length": "0"}, b"")
            )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
