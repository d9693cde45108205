"""Reading what a client asked of the answer's shape, without holding up the event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from service.budget import Budget, OverBudget
from service.errors import RequestError
from service.harmony.turns import in_thread

R = TypeVar("R")

MAX_STEPS: Final = 20_000  # of all schemas of a request; each is one to a few microseconds
_FEW_STEPS: Final = 300  # about a millisecond


async def read_in_turns(read: Callable[[Budget], R], param: str) -> R:
    """What `read` gives: here when it takes few steps, else in a thread that rests in between.

    Raises what it raises, and RequestError naming the parameter for what takes too many.
    """
    with suppress(OverBudget):
        return read(Budget(_FEW_STEPS, "steps"))
    try:
        return await in_thread(partial(read, Budget(MAX_STEPS, "steps")))
    except OverBudget as error:
        raise RequestError(
            f"{param} cannot be enforced: reading all schemas together takes more than "
            f"{error.limit} steps; send fewer, or smaller ones.",
            param=param,
            code="invalid_schema",
        ) from None
