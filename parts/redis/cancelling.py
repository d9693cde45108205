"""Calls of the Redis library that a cancellation ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

R = TypeVar("R")


async def cancellable(call: Awaitable[R]) -> R:
    """The result of a call; raises CancelledError if its task was cancelled meanwhile.

    The library sends with asyncio.wait_for, which drops a cancellation that comes as its sending
    ends (Python 3.11). The task would continue after its end.
    """
    task = asyncio.current_task()
    assert task is not None
    num_before = task.cancelling()
    try:
        return await call
    finally:
        if task.cancelling() > num_before:
            raise asyncio.CancelledError
