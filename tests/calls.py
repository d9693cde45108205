"""How many calls a thread makes: a measure of work that is the same on a busy machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Calls:
    """The calls of Python's and C's functions that a thread has made."""

    def __init__(self) -> None:
        self.number = 0

    def note(self, frame: object, event: str, argument: object) -> None:
        self.number += event in ("call", "c_call")


@contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls of this thread."""
    calls, before = Calls(), sys.getprofile()
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def num_calls(work: Callable[[], object]) -> int:
    """How many calls a piece of work makes, after a first time that makes what is kept."""
    work()
    with counted() as calls:
        work()
    return calls.number
