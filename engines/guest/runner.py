"""A library with a scheduler of its own behind the contract: a task follows each request in it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from engines.base import EngineInfo, EngineRequest, EngineStats, Receive, TokenEvent
from engines.errors import EngineDead, EngineError, EngineStartError, InvalidRequest, RequestFailed
from engines.guest.counters import Counters
from engines.guest.grammars import Grammars
from engines.validation import check_request

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, weakref_slot=True)
class GuestRun:
    """One request: the library's parameters of it, and the task that follows it once begun."""

    request: EngineRequest
    sampling: Any
    following: asyncio.Task[None] | None = None


class GuestRunner(ABC):
    """Implements engines.base.Runner but for what a library calls by names of its own."""

    library: ClassVar[str]

    def __init__(self, vocabulary_path: Path | None, counters: Counters) -> None:
        self._vocabulary_path = vocabulary_path
        self._counters = counters
        self._info: EngineInfo | None = None
        self._is_running = False
        self._grammars: Grammars | None = None
        self._inside: dict[GuestRun, Receive] = {}

    @abstractmethod
    def _load(self) -> EngineInfo:
        """Load the checkpoint, in a thread and for minutes; raises what the library does."""

    @abstractmethod
    def _sampling(self, request: EngineRequest, guide: str | None, vocab_size: int) -> Any:
        """Make the library's sampling parameters; `guide` is a grammar in llguidance's Lark."""

    @abstractmethod
    def _events(self, run: GuestRun, arrived_s: float) -> AsyncGenerator[TokenEvent, None]:
        """Yield the events of a request; closing the generator aborts it.

        `arrived_s` (time.monotonic()) is when the request arrived.
        """

    @abstractmethod
    def _is_refusal(self, error: Exception) -> bool:
        """Whether the library says by this error that it does not take the request."""

    def _is_of_grammar(self, error: Exception) -> bool:
        """Whether a refusal of a request with a grammar is about the grammar."""
        return True

    @abstractmethod
    async def _check(self) -> None:
        """Raise with the reason, unless the library runs and can serve."""

    @abstractmethod
    def _shut_down(self) -> None:
        """End the library and its processes, in a thread; may be called twice."""

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDead("the engine is not running")
        return self._info

    async def start(self) -> None:
        try:
            self._info = await asyncio.to_thread(self._load)
        except EngineStartError:
            raise
        except Exception as error:  # whatever it raises; it has logged the cause
            reason = f"{type(error).__name__}: {error}"
            raise EngineStartError(f"{self.library} cannot be started: {reason}") from error
        if self._vocabulary_path is not None:
            self._grammars = Grammars(self._info.vocab_size)
            await self._grammars.start()
        self._is_running = True

    async def prepare(self, request: EngineRequest) -> GuestRun:
        """Check the request and try its grammar; raises InvalidRequest."""
        info = self.info
        check_request(request, info.vocab_size, info.max_model_len)
        guide = None
        if request.grammar is not None:
            assert self._grammars is not None
            guide = await self._grammars.written(request)
        try:
            return GuestRun(request, self._sampling(request, guide, info.vocab_size))
        except EngineError:
            raise
        except Exception as error:  # the class for it is not the same in every version
            raise InvalidRequest(f"{self.library} refuses the request: {error}") from error

    def num_cached_tokens(self, run: GuestRun) -> int | None:
        """Return None: what the library has cached is its own affair."""
        return None

    def begin(self, run: GuestRun, receive: Receive, arrived_s: float) -> None:
        """Follow the request in a task; raises EngineDead."""
        self._check_running()
        self._inside[run] = receive
        self._counters.count_prompt(len(run.request.prompt_token_ids))
        run.following = asyncio.create_task(
            self._follow(run, arrived_s), name=f"{self.library}-request"
        )

    def abort(self, run: GuestRun) -> None:
        """Give nothing more of a run, and cancel its task, which tells the library."""
        self._inside.pop(run, None)
        if run.following is not None:
            run.following.cancel()

    async def stats(self) -> EngineStats:
        self._check_running()
        stats, grammars = self._counters.stats(len(self._inside)), self._grammars
        if grammars is None:
            return stats
        return replace(
            stats, num_grammars_compiled=grammars.num_compiled, grammar_compile_s=grammars.compile_s
        )

    async def check_health(self) -> None:
        """Raise EngineDead before start(), after stop(), and when the library is dead."""
        self._check_running()
        if (reason := await self._death()) is not None:
            raise EngineDead(f"{self.library} is dead: {reason}")

    async def stop(self) -> None:
        """End what still runs with EngineDead, and the library's processes."""
        self._is_running = False
        following = [run.following for run in self._inside if run.following is not None]
        for run in list(self._inside):
            self._give(run, EngineDead("the engine has been stopped"))
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        if self._grammars is not None:
            await self._grammars.stop()
        await asyncio.to_thread(self._shut_down)

    async def _follow(self, run: GuestRun, arrived_s: float) -> None:
        try:
            async with aclosing(self._events(run, arrived_s)) as events:
                async for event in events:
                    self._give(run, event)
        except EngineError as error:
            self._give(run, error)
        except Exception as error:
            self._give(run, await self._error_of(run, error))

    def _give(self, run: GuestRun, outcome: TokenEvent | EngineError) -> None:
        receive = self._inside.get(run)
        if receive is None:
            return  # aborted
        if isinstance(outcome, EngineError) or outcome.finish_reason is not None:
            del self._inside[run]
        receive(outcome)

    async def _error_of(self, run: GuestRun, error: Exception) -> EngineError:
        words = f"{type(error).__name__}: {error}"
        if await self._death() is not None:
            return EngineDead(f"{self.library} is dead: {words}")
        if self._is_refusal(error):
            grammar = run.request.grammar
            if grammar is None or self._grammars is None or not self._is_of_grammar(error):
                return InvalidRequest(f"{self.library} refuses the request: {error}")
            return await self._grammars.refusal(grammar, str(error))
        log.error("%s failed in a request: %s", self.library, words, exc_info=error)
        return RequestFailed(f"{self.library} failed in this request: {words}")

    def _check_running(self) -> None:
        if not self._is_running:
            raise EngineDead("the engine is not running")

    async def _death(self) -> str | None:
        """Why the library cannot serve, None while it can."""
        try:
            await self._check()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None
