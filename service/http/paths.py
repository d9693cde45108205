"""The paths of all routes: a row for each says who may use it, how it counts, how it answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.routing import Route, compile_path

from auth.base import Scope
from service.http.failures import ErrorAnswer, ErrorEnvelope, MessageError
from service.request import OTHER

ROW: Final = "harmonium.row"  # the key of a request's PathRow in an ASGI scope

# What `NIM_READ_WITHOUT_KEY` can open, and by which methods.
Read = Literal["metrics", "models", "render"]
_METHODS: Final[Mapping[Read, frozenset[str]]] = {
    "metrics": frozenset({"GET", "HEAD"}),
    "models": frozenset({"GET", "HEAD"}),
    "render": frozenset({"POST"}),
}
READS: Final = tuple(_METHODS)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the clients of an API read of every answer."""

    error_body: Callable[[ErrorAnswer], Mapping[str, Any]] = ErrorAnswer.body
    error: type[BaseModel] = ErrorEnvelope  # its schema: /openapi.json has it for each of the paths
    id_header: str | None = None  # has the request's id, beside X-Request-Id


OPENAI: Final = Dialect()
ANTHROPIC: Final = Dialect(ErrorAnswer.anthropic_body, MessageError, id_header="Request-Id")


@dataclass(frozen=True, slots=True)
class PathRow:
    """A path that has routes. Paths below it that have none need its scope and get its dialect."""

    path: str  # as its routes have it: "/v1/models/{model_id:path}"
    scope: Scope | None  # None: no key is needed
    is_generating: bool = False  # a POST waits for the gate
    is_counted: bool = False  # costs a caller's quota, though it generates nothing
    is_quiet: bool = False  # polled for ever: its log lines are for debugging
    is_probe: bool = False  # answered however many connections are open
    is_websocket: bool = False  # a GET may become one (service/http/websocket.py)
    read: Read | None = None
    dialect: Dialect = OPENAI

    @property
    def label(self) -> str:
        """The path in metrics and logs."""
        return self.path.replace(":path}", "}")

    def is_open(self, method: str, reads: Collection[str]) -> bool:
        """Whether a request is one of the reads that need no key."""
        return self.read is not None and self.read in reads and method in _METHODS[self.read]


_UNKNOWN: Final = PathRow(OTHER, Scope.ADMIN)


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """A group of routes in the OpenAPI document: a tag of their router."""

    name: str
    text: str
    rank: int


@dataclass(frozen=True, slots=True)
class Routes:
    """A router with the rows of its paths; `rank` is its place in the OpenAPI document.

    ROUTES of parts/<name>/routes.py is a tuple of these.
    """

    rows: tuple[PathRow, ...]
    router: APIRouter
    rank: int
    groups: tuple[RouteGroup, ...] = ()


class Paths:
    """The rows of one application."""

    def __init__(self, rows: Iterable[PathRow] = ()) -> None:
        rows = tuple(rows)
        self._fixed = {row.path: row for row in rows if "{" not in row.path}
        self._templates = [(compile_path(row.path)[0], row) for row in rows if "{" in row.path]
        self._below = {path: _below(row) for path, row in self._fixed.items()}
        self._depth = max((path.count("/") for path in self._fixed), default=0)

    def row(self, path: str) -> PathRow:
        """The row of a path; of one that has no route, what holds below the next row above it.

        What is below no row needs `admin`.
        """
        if found := self._fixed.get(path):
            return found
        for pattern, row in self._templates:
            if pattern.match(path):
                return row
        # No deeper than a row is: a client may send thousands of slashes.
        above = "/".join(path.split("/", self._depth + 1)[: self._depth + 1])
        while above:
            if found := self._below.get(above):
                return found
            above = above.rpartition("/")[0]
        return _UNKNOWN


def _below(row: PathRow) -> PathRow:
    return replace(
        _UNKNOWN, scope=row.scope or Scope.ADMIN, is_counted=row.is_generating, dialect=row.dialect
    )


def checked(families: Iterable[Routes]) -> list[Routes]:
    """The families in their order; raises ValueError for a route without a row or vice versa."""
    ordered = sorted(families, key=lambda family: family.rank)
    seen: set[str] = set()
    for family in ordered:
        rows = [row.path for row in family.rows]
        routes = {route.path for route in family.router.routes if isinstance(route, Route)}
        for path in routes.symmetric_difference(rows):
            lack = "has a route but no PathRow" if path in routes else "has a PathRow but no route"
            raise ValueError(f"{path} {lack}: give it one beside its router, in ROUTES")
        twice = [path for path in rows if path in seen or rows.count(path) > 1]
        if twice:
            raise ValueError(f"{twice[0]} has two rows in ROUTES; remove one")
        seen.update(rows)
    return ordered
