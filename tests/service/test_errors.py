"""The table of errors is complete, and documented."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from auth.base import AuthError
from engines.errors import EngineError, PromptTooLong
from service.http.failures import INTERNAL, TABLE, failure_of

DOCS = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()


def family(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for child in root.__subclasses__():
        yield from family(child)


@pytest.mark.parametrize("error", [*family(EngineError), *family(AuthError)])
def test_every_error_has_its_own_row(error: type[Exception]) -> None:
    assert error in TABLE


@pytest.mark.parametrize("code", [row.code for row in (*TABLE.values(), INTERNAL)])
def test_every_code_is_documented(code: str) -> None:
    assert f"`{code}`" in DOCS


def test_a_subclass_that_nobody_listed_is_answered_like_its_parent() -> None:
    class TooLongByOne(PromptTooLong):
        pass

    failure = failure_of(TooLongByOne("one too many"))
    assert failure.kind == TABLE[PromptTooLong]
    assert failure.message == "one too many"


def test_a_lack_of_threads_is_no_fault_of_the_server_s_code(
    no_more_threads: Callable[[], AbstractContextManager[None]],
) -> None:
    with no_more_threads(), pytest.raises(RuntimeError) as raised:
        threading.Thread(target=int).start()
    failure = failure_of(raised.value)
    assert (failure.kind.status, failure.kind.code) == (503, "out_of_memory")
    assert failure.kind.headers["Retry-After"]
    assert "--pids-limit" in failure.message
