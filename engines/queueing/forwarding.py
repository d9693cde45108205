"""Behind our queue, another engine: requests go to it as they are, and its events come back."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from engines.base import EngineRequest, Outcome, Receive, TokenEvent
from engines.errors import EngineDead, EngineError, RequestFailed

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ForwardedRun:
    """One request, and the task that follows it once begun."""

    request: EngineRequest
    receive: Receive | None = None
    following: asyncio.Task[None] | None = None


class ForwardingRunner(ABC):
    """Of engines.base.Runner, what concerns requests; who inherits it says where they go."""

    def __init__(self) -> None:
        self._runs: set[ForwardedRun] = set()

    @abstractmethod
    def _events(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        """Have the other engine generate."""

    def num_cached_tokens(self, run: ForwardedRun) -> int | None:
        """Return None: what the other engine has cached is not known here."""
        return None

    def begin(self, run: ForwardedRun, receive: Receive, arrived_s: float) -> None:
        run.receive = receive
        self._runs.add(run)
        waited_s = time.monotonic() - arrived_s
        run.following = asyncio.create_task(self._follow(run, waited_s), name="forwarded request")

    def abort(self, run: ForwardedRun) -> None:
        """End a run; the other engine learns of it at once."""
        run.receive = None
        self._runs.discard(run)
        if run.following is not None:
            run.following.cancel()

    async def _end_runs(self) -> None:
        """End all runs, for the engine stops."""
        following = [run.following for run in self._runs if run.following is not None]
        for run in list(self._runs):
            receive = run.receive
            self.abort(run)
            if receive is not None:
                receive(EngineDead("the engine has been stopped"))
        await asyncio.gather(*following, return_exceptions=True)

    async def _follow(self, run: ForwardedRun, waited_s: float) -> None:
        try:
            async with aclosing(self._events(run.request)) as events:
                async for event in events:
                    event = replace(event, queued_s=event.queued_s + waited_s)
                    self._give(run, event, is_last=event.finish_reason is not None)
        except EngineError as error:
            self._give(run, error, is_last=True)
        except Exception as error:
            log.exception("Request %s failed", run.request.request_id)
            failed = RequestFailed(f"the request failed ({type(error).__name__}: {error})")
            self._give(run, failed, is_last=True)

    def _give(self, run: ForwardedRun, outcome: Outcome, *, is_last: bool) -> None:
        if is_last:
            self._runs.discard(run)
        if run.receive is not None:
            run.receive(outcome)
