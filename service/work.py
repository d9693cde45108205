"""How much work a request may cost, and work in a thread that does not hold up other streams.

What is small to send can be large to walk: references that double at every level, parts that
are merged one by one, texts that are written once for each time they are referred to. So walking
spends from a budget, in units of about a tenth of a microsecond to a microsecond, and ends with
an error of the client's when it is used up. JsonScan counts a text before it is parsed.

Long work is done in a thread. A thread alone would not do: the interpreter runs one of them at a
time, and the running one keeps it for milliseconds. So of all that work here one at a time does,
for a millisecond, and then rests for as long as it worked: the event loop has half of the time,
however many prompts are being written.

Short work is done in the event loop, where a thread would only delay it. Many requests that come
together are much work in one turn of the loop all the same, so each turn does a few milliseconds
of it, and the rest waits for the next turns, in order.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import cache
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from engines.threads import Threads

R = TypeVar("R")

_WORK_S: Final = 0.001
_HANDOVER_S: Final = 0.0002  # for the next to take its turn
_IN_LOOP_S: Final = 0.004  # of short work, in a turn of the event loop

_MOST_IN_LOOP: Final = 100  # messages: each takes 10 to 30 microseconds

_turn = threading.Lock()

MAX_VALUES: Final = 262_144  # of any kind; a prompt of token ids has one for each
MAX_OBJECTS: Final = 16_384  # objects and lists
MAX_KEYS: Final = 32_768
MAX_ESCAPES: Final = 524_288  # in strings; each costs more than sixty plain letters
_PIECE_BYTES: Final = 65_536  # scanned in less than a millisecond


class OverBudget(Exception):
    """A walk over what a client sent took more than its budget."""

    def __init__(self, limit: int, unit: str) -> None:
        super().__init__(f"more than {limit} {unit}")
        self.limit = limit
        self.unit = unit


class Budget:
    """A number of units of work that may be spent once."""

    __slots__ = ("_left", "limit", "unit")

    def __init__(self, limit: int, unit: str) -> None:
        self.limit = limit
        self.unit = unit
        self._left = limit

    @property
    def spent(self) -> int:
        return self.limit - self._left

    def spend(self, number: int = 1) -> None:
        """Spend some units; raises OverBudget once more than all are spent."""
        self._left -= number
        if self._left < 0:
            raise OverBudget(self.limit, self.unit)


class _Worker(threading.local):
    """What a thread does that takes turns; nothing is set in any other thread."""

    begun_s: float | None = None  # of this thread's CPU time, when its turn began
    tokens: Budget | None = None  # that its work may still make


_worker = _Worker()


async def in_thread(work: Callable[[], R], tokens: Budget | None = None) -> R:
    """Do work in a thread that takes turns; raises OverBudget when it makes more than `tokens`."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads(), copy_context().run, in_turns, work, tokens)


async def by_number(work: Callable[[], R], number: int) -> R:
    """Do work over a number of things: a few in the event loop, more in a thread that takes turns.

    The work calls rest() after each.
    """
    return work() if number <= _MOST_IN_LOOP else await in_thread(work)


@cache
def _threads() -> Threads:
    """Most of them wait for their turn: no prompt waits for another to be complete."""
    return Threads(32, "prompt")


def in_turns(work: Callable[[], R], tokens: Budget | None = None) -> R:
    """Do the work of in_thread() in this thread, which must not be the event loop's."""
    with _turn:
        _worker.begun_s, _worker.tokens = time.thread_time(), tokens
        try:
            return work()
        finally:
            _worker.begun_s = _worker.tokens = None


def rest() -> None:
    """Let other work run when this thread's turn has been long; called between small pieces of
    work."""
    if _worker.begun_s is None:
        return
    worked_s = time.thread_time() - _worker.begun_s
    if worked_s < _WORK_S:
        return
    time.sleep(worked_s)
    _turn.release()
    time.sleep(_HANDOVER_S)
    _turn.acquire()
    _worker.begun_s = time.thread_time()


def count_tokens(number: int) -> None:
    """Count tokens that the work has made; raises OverBudget when it may make no more."""
    if _worker.tokens is not None:
        _worker.tokens.spend(number)


async def in_loop(work: Callable[[], R]) -> R:
    """Do short work in the event loop: at once, or in a later turn if this one had its share."""
    loop = asyncio.get_running_loop()
    if (short := _short_work.get(loop)) is None:
        short = _short_work[loop] = _ShortWork()
    return await short.do(loop, work)


class _ShortWork:
    """The short work of one event loop, in order."""

    def __init__(self) -> None:
        self._spent_s = 0.0  # CPU time, in this turn of the loop
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()

    async def do(self, loop: asyncio.AbstractEventLoop, work: Callable[[], R]) -> R:
        if not self._waiting and self._spent_s < _IN_LOOP_S:
            return self._timed(loop, work)
        result: asyncio.Future[R] = loop.create_future()
        self._waiting.append((work, result))
        return await result

    def _timed(self, loop: asyncio.AbstractEventLoop, work: Callable[[], R]) -> R:
        if not self._spent_s:
            loop.call_soon(self._begin_turn, loop)
        begun_s = time.thread_time()
        try:
            return work()
        finally:
            self._spent_s += time.thread_time() - begun_s

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._spent_s = 0.0
        while self._waiting and self._spent_s < _IN_LOOP_S:
            work, result = self._waiting.popleft()
            if result.done():  # its request was cancelled
                continue
            try:
                result.set_result(self._timed(loop, work))
            except Exception as error:
                result.set_exception(error)


_short_work: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _ShortWork]] = WeakKeyDictionary()


class JsonScan:
    """Counts what a JSON text is made of, as its bytes come, without parsing it.

    Exact for every valid JSON text: the content of strings does not count.
    """

    def __init__(self, max_objects: int = MAX_OBJECTS) -> None:
        self.objects = Budget(max_objects, "objects and lists")
        self.keys = Budget(MAX_KEYS, "keys")
        self.values = Budget(MAX_VALUES, "values")  # a comma stands before all but the first
        self.escapes = Budget(MAX_ESCAPES, "characters written with a backslash")
        self._is_in_string = False
        self._rest = b""  # a backslash whose character has not come yet

    async def feed(self, data: bytes) -> None:
        """Count more bytes, leaving the loop between pieces; raises OverBudget."""
        for start in range(0, len(data), _PIECE_BYTES):
            if start:
                await asyncio.sleep(0)
            self.count(data[start : start + _PIECE_BYTES])

    def count(self, piece: bytes) -> None:
        """Count one piece of bytes; raises OverBudget when there is too much of anything."""
        outside = self._outside_strings(piece)
        num_objects = outside.count(b"{") + outside.count(b"[")
        self.objects.spend(num_objects)
        self.keys.spend(outside.count(b":"))
        self.values.spend(num_objects + outside.count(b","))

    def _outside_strings(self, piece: bytes) -> bytes:
        data = self._rest + piece
        single = data.replace(b"\\\\", b"")
        self._rest = b"\\" if single.endswith(b"\\") else b""
        single = single.removesuffix(b"\\")
        self.escapes.spend((len(data) - len(self._rest) - len(single)) // 2 + single.count(b"\\"))
        parts = single.replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._is_in_string :: 2])
        self._is_in_string ^= len(parts) % 2 == 0
        return outside
