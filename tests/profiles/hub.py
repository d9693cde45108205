"""A server on loopback that has files as the hub, an S3 bucket or a plain mirror has them.

It can misbehave: each file may be given faults, used up one request at a time.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

import pytest

from tests import loopback

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Fault:
    """What goes wrong with one request for a file."""

    status: int | None = None  # answered instead of the file
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # bytes of the body, then the connection is closed
    content: bytes | None = None  # sent instead of the file's
    before: Callable[[], None] = lambda: None  # called first: to wait, or to note


@dataclass
class Served:
    """The files by path, the faults to come by file name, and what was asked for."""

    files: dict[str, bytes]
    lists: dict[str, bytes] = field(default_factory=dict)  # what is told of files, by path
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range
    tokens: list[str | None] = field(default_factory=list)
    looked_up: list[tuple[str, str | None]] = field(default_factory=list)  # list and Authorization
    port: int = 0
    has_ranges: bool = True  # else it sends whole files, whatever is asked

    @property
    def url(self) -> str:
        return f"http://{loopback.IN_URL}:{self.port}"


@contextmanager
def serving(files: dict[str, bytes], tls: ssl.SSLContext | None = None) -> Iterator[Served]:
    """Serve `files`: names are paths, such as `openai/gpt-oss-20b/resolve/abc/config.json`."""
    served = Served(files)
    server = loopback.HttpServer((loopback.ADDRESS, 0), _handler(served))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def hub_of(served: Served, monkeypatch: pytest.MonkeyPatch, contents: Mapping[str, bytes]) -> None:
    """It is the hub, and has the repository acme/tuned whose main is COMMIT."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", served.url)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        served.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    siblings = []
    for name, content in contents.items():
        served.files[f"acme/tuned/resolve/{COMMIT}/{name}"] = content
        entry = {"rfilename": name, "size": len(content), "blobId": "b"}
        if name.endswith((".safetensors", ".gguf")):
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 1}
        siblings.append(entry)
    answer = {"id": "acme/tuned", "sha": COMMIT, "siblings": siblings}
    path = "api/models/acme/tuned/revision/main?blobs=true"
    served.lists[path] = json.dumps(answer).encode()


def bucket_of(
    served: Served, monkeypatch: pytest.MonkeyPatch, contents: Mapping[str, bytes]
) -> None:
    """It is S3, and has `contents` at s3://bucket/m."""
    served.files |= {f"bucket/m/{name}": content for name, content in contents.items()}
    entries = "".join(
        f"<Contents><Key>m/{name}</Key><Size>{len(content)}</Size>"
        "<LastModified>2026-03-02T10:00:00.000Z</LastModified><ETag>e</ETag></Contents>"
        for name, content in contents.items()
    )
    listing = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    served.lists["bucket?list-type=2&prefix=m%2F"] = listing.encode()
    for name, value in {
        "AWS_ENDPOINT_URL": served.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)


def _handler(served: Served) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            if path in served.lists:
                served.looked_up.append((path, self.headers.get("Authorization")))
                self._answer(200, served.lists[path], {"Content-Type": "application/json"})
                return
            served.asked.append((path, self.headers.get("Range")))
            served.tokens.append(self.headers.get("Authorization"))
            faults = served.faults.get(path.rpartition("/")[2], [])
            fault = faults.pop(0) if faults else Fault()
            fault.before()
            content = served.files.get(path) if fault.content is None else fault.content
            if fault.status is not None:
                self._answer(fault.status, b"", fault.headers)
            elif content is None:
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                self._send(content, fault)

        def do_HEAD(self) -> None:
            content = served.files.get(self.path.lstrip("/"))
            headers = {"ETag": '"e"', "Last-Modified": "Mon, 02 Mar 2026 10:00:00 GMT"}
            if content is None:
                self._answer(404, b"", {})
            else:
                self._answer(200, content, headers, cut_after=0)

        def _send(self, content: bytes, fault: Fault) -> None:
            start, end, headers, status = 0, len(content), dict(fault.headers), 200
            asked = (self.headers.get("Range") or "") if served.has_ranges else ""
            if match := re.fullmatch(r"bytes=(\d+)-(\d*)", asked):
                start, end = int(match[1]), int(match[2] or len(content) - 1) + 1
                if start >= len(content):
                    self._answer(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                    return
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
                status = 206
            headers |= {"ETag": '"e"', "Last-Modified": "Mon, 02 Mar 2026 10:00:00 GMT"}
            self._answer(status, content[start:end], headers, fault.cut_after)

        def _answer(
            self, status: int, body: bytes, headers: dict[str, str], cut_after: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[:cut_after])
            if cut_after is not None:
                self.close_connection = True

        def log_message(self, *_: Any) -> None: ...

    return Handler
