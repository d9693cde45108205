"""Rows of paths: each route has one, and what holds for paths that have none."""

from __future__ import annotations

import pytest
from fastapi import APIRouter

from auth.base import Scope
from service.http.paths import Dialect, PathRow, Paths, Routes, checked
from service.request import OTHER

OTHERS = Dialect(id_header="Others-Id")
PATHS = Paths(
    (
        PathRow("/", None),
        PathRow("/health", None, is_quiet=True, is_probe=True),
        PathRow("/v1/answers", Scope.INFERENCE, is_generating=True, dialect=OTHERS),
        PathRow("/v1/answers/{id}", Scope.INFERENCE),
        PathRow("/v1/models/{name:path}", Scope.MODELS),
        PathRow("/v1/metrics", Scope.METRICS, read="metrics"),
    )
)


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/v1/answers", "/v1/answers"),
        ("/v1/answers/a1", "/v1/answers/{id}"),
        ("/v1/models/a/b", "/v1/models/{name}"),
        ("/v1/answers/a1/more", OTHER),
        ("/v1/answersx", OTHER),
        ("/v1", OTHER),
    ],
)
def test_the_label_of_a_path_is_its_template(path: str, label: str) -> None:
    assert PATHS.row(path).label == label


def test_what_is_below_a_row_needs_its_scope_and_is_counted_if_the_row_generates() -> None:
    below = PATHS.row("/v1/answers/a1/more")
    assert (below.scope, below.is_counted, below.is_generating) == (Scope.INFERENCE, True, False)
    assert below.dialect is OTHERS
    assert not PATHS.row("/v1/metrics/more").is_open("GET", ("metrics",))


@pytest.mark.parametrize(
    "path", ["/v1/answersx", "/v1/metricsx", "/health/more", "/else", "", "/v1/x" + "/" * 60_000]
)
def test_what_is_below_no_row_or_below_an_open_one_needs_admin(path: str) -> None:
    row = PATHS.row(path)
    assert (row.scope, row.is_probe, row.is_quiet) == (Scope.ADMIN, False, False)


def routes(*rows: str, paths: tuple[str, ...] = ("/a",), rank: int = 0) -> Routes:
    router = APIRouter()
    for path in paths:
        router.add_api_route(path, lambda: None)
    return Routes(tuple(PathRow(path, Scope.ADMIN) for path in rows), router, rank)


def test_a_route_without_a_row_and_a_row_without_a_route_end_the_start() -> None:
    with pytest.raises(ValueError, match=r"^/b has a route but no PathRow"):
        checked([routes("/a", paths=("/a", "/b"))])
    with pytest.raises(ValueError, match=r"^/b has a PathRow but no route"):
        checked([routes("/a", "/b")])
    with pytest.raises(ValueError, match=r"^/a has two rows"):
        checked([routes("/a"), routes("/a")])


def test_families_are_in_the_order_of_their_ranks() -> None:
    last, first = routes("/a", rank=2), routes("/b", paths=("/b",), rank=1)
    assert checked([last, first]) == [first, last]
