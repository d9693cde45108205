"""What a request is to the queue in front of an engine, from its arrival to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from engines.base import EngineRequest, Outcome, Receive

T = TypeVar("T")  # a request in the engine's own form


class Entry(Generic[T]):
    """One request from its arrival to its end."""

    __slots__ = (
        "_on_outcome",
        "arrived_s",
        "has_begun",
        "is_inside",
        "is_long",
        "is_open",
        "num_expected_tokens",
        "num_generated",
        "queued_s",
        "receive",
        "request",
        "run",
        "too_late",
        "work",
    )

    def __init__(
        self,
        on_outcome: Callable[[Entry[T], Outcome], None],
        request: EngineRequest,
        run: T,
        receive: Receive,
        arrived_s: float,
    ) -> None:
        self._on_outcome = on_outcome
        self.request = request
        self.run = run
        self.receive = receive
        self.arrived_s = arrived_s
        self.queued_s = time.monotonic()  # since then it waits for the engine
        self.too_late: asyncio.TimerHandle | None = None  # while it waits and may not for ever
        self.num_expected_tokens = 0  # to be computed before the first new one, without cached ones
        self.num_generated = 0
        self.work = 0.0  # what it is expected to cost
        self.is_long = False  # the engine computes its prompt in more than one step
        self.is_open = True  # it has not ended
        self.is_inside = False  # the engine has it
        self.has_begun = False  # the engine has given a token of it

    @property
    def num_known_tokens(self) -> int:
        """Tokens to be computed before the first new one."""
        return len(self.request.prompt_token_ids) + len(self.request.generated_token_ids)

    def take(self, outcome: Outcome) -> None:
        """Hand one outcome of the engine to the entry's owner, while the entry is open."""
        if self.is_open:
            self._on_outcome(self, outcome)

    def end(self) -> None:
        """Close the entry and drop its references to the run and the receiver.

        Else each request would be a reference cycle, and a thousand that end together a garbage
        collection for which all streams wait.
        """
        self.is_open = False
        self.stop_timer()
        del self.run, self.receive

    def stop_timer(self) -> None:
        """Cancel the timer that would end the entry for having waited too long."""
        if self.too_late is not None:
            self.too_late.cancel()
            self.too_late = None


class InFlightPrompts:
    """Counts requests that an engine has and that have no token yet, by priority and length."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, bool], tuple[int, int]] = {}  # requests, tokens of prompts

    def of(self, priority: int, *, is_long: bool) -> tuple[int, int]:
        """How many such requests, and tokens of them, are as urgent as this priority or more."""
        counts = [c for (p, kind), c in self._counts.items() if p <= priority and kind == is_long]
        return sum(count[0] for count in counts), sum(count[1] for count in counts)

    def count(self, priority: int, num_requests: int, num_tokens: int, is_long: bool) -> None:
        requests, tokens = self._counts.pop((priority, is_long), (0, 0))
        if requests + num_requests:
            self._counts[priority, is_long] = (requests + num_requests, tokens + num_tokens)
