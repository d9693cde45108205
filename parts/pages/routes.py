"""GET /, /docs and their assets: pages that request nothing from other servers.

Their source is in `source/`; `make playground` builds `static/` from it. The pages themselves hold
no secret and need no key; what they ask for does.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from parts.pages.settings import Disabled
from service.errors import RequestError
from service.http.compressed import takes_gzip
from service.http.paths import PathRow, Routes
from service.runtime import CurrentRuntime, Runtime

router = APIRouter(include_in_schema=False)

_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# No inline script or style, no frame around it, no other host but those that are to be compared.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'"
)
_DOCUMENTS: Final = (".html", ".svg")  # what a browser shows as a page; the rest belongs to one
_OF_DOCUMENTS: Final = {
    "Referrer-Policy": "no-referrer",
    "X-DNS-Prefetch-Control": "off",  # links in an answer cause no requests when shown
}
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # asked again each time, and answered 304 where nothing changed
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it is sent: whole or compressed, which caches must tell apart."""

    content: bytes
    tag: str
    encoding: dict[str, str]


@router.get("/")
async def page(request: Request, runtime: CurrentRuntime) -> Response:
    """Serve the playground."""
    return _answer("index.html", request, runtime)


@router.get("/docs")
async def catalogue(request: Request, runtime: CurrentRuntime) -> Response:
    """Serve the catalogue: what is served, how it does, and every route with an example."""
    return _answer("docs.html", request, runtime)


@router.get("/assets/{name}")
async def asset(name: str, request: Request, runtime: CurrentRuntime) -> Response:
    """Serve a script, the style or the icon of the pages."""
    return _answer(name, request, runtime)


def lost(path: str) -> Response:
    """What a browser shows for a path that there is not; its links go up, to keep a prefix."""
    root = b"/".join([b".."] * (path.count("/") - 1)) or b"."
    html = _files("lost.html")[0].content.replace(b"ROOT", root)
    return Response(html, 404, headers=_HEADERS | _document_headers(), media_type=_TYPES[".html"])


def _document_headers(*origins: str) -> dict[str, str]:
    return {**_OF_DOCUMENTS, "Content-Security-Policy": " ".join((_POLICY, *origins))}


def _answer(name: str, request: Request, runtime: Runtime) -> Response:
    if runtime.of(Disabled) is not None:
        raise RequestError(
            "The pages of this server are disabled (NIM_DISABLE_PLAYGROUND). The API is under /v1: "
            "GET /v1/models lists what is served, GET /openapi.json the routes.",
            status=404,
            code="route_not_found",
        )
    if name not in _names():
        raise RequestError(f"There is no file {name[:80]!r} of the pages.", status=404)
    whole, compressed = _files(name)
    file = compressed if takes_gzip(request) else whole
    headers = {**_HEADERS, **file.encoding, "ETag": file.tag}
    if Path(name).suffix in _DOCUMENTS:
        headers |= _document_headers(*runtime.compared_origins)
    if name == "offline.js":
        headers["Service-Worker-Allowed"] = "../"  # it answers for the page above it, too
    if name == "pdf.js":
        headers["Content-Security-Policy"] = "default-src 'none'"  # whatever a PDF makes it do
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=_TYPES[Path(name).suffix])


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in _FOLDER.iterdir())


@cache
def _files(name: str) -> tuple[_File, _File]:
    """Read a file, whole and compressed."""
    content = (_FOLDER / name).read_bytes()
    packed = gzip.compress(content, mtime=0)
    return _file(content, {}), _file(packed, {"Content-Encoding": "gzip"})


def _file(content: bytes, encoding: dict[str, str]) -> _File:
    return _File(content, f'"{hashlib.sha256(content).hexdigest()[:16]}"', encoding)


# They hold no secret; what they ask for needs its key.
ROUTES: Final = (
    Routes(
        rows=tuple(PathRow(path, None) for path in ("/", "/docs", "/assets/{name}")),
        router=router,
        rank=80,
    ),
)
