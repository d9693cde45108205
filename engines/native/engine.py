"""The native engine's asyncio face; the work is done in engines/native/worker.py's thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Final

from engines.base import EngineInfo, EngineRequest, EngineStats, TokenEvent
from engines.errors import EngineDead, EngineDraining, EngineError, EngineStartError
from engines.native.config import NativeConfig
from engines.native.core import EngineCore, load_core
from engines.native.grammar import GrammarCompiler, Guide
from engines.native.validation import check_request
from engines.native.worker import Delivery, Ticket, Worker

log = logging.getLogger(__name__)

RELEASE: Final = version("harmonium")  # reads files: not for every request

LoadCore = Callable[[NativeConfig], EngineCore]


class _Stream(Ticket):
    """A ticket and what has been delivered for it."""

    __slots__ = ("is_ended", "outcomes")

    def __init__(self, request: EngineRequest) -> None:
        super().__init__(request)
        self.outcomes: asyncio.Queue[TokenEvent | EngineError] = asyncio.Queue()
        self.is_ended = False  # the worker has said its last about it


class NativeEngine:
    """gpt-oss in PyTorch; implements engines.base.Engine.

    All methods belong to the event loop that start() ran in.
    """

    def __init__(self, config: NativeConfig, load: LoadCore = load_core) -> None:
        self._config = config
        self._load = load
        self._core: EngineCore | None = None
        self._worker: Worker | None = None
        self._grammars: GrammarCompiler | None = None
        self._num_compiling = 0  # requests whose grammar is not compiled yet
        self._streams: set[Ticket] = set()
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def info(self) -> EngineInfo:
        """What the loaded checkpoint and the options allow; raises EngineDead before start()."""
        core = self._loaded()
        limits = core.scheduler.limits
        return EngineInfo(
            engine="native",
            version=RELEASE,
            max_model_len=limits.max_model_len,
            vocab_size=core.vocab_size,
            max_num_seqs=limits.max_num_seqs,
        )

    async def start(self) -> None:
        """Load the checkpoint; raises EngineStartError when it cannot be served."""
        loop = asyncio.get_running_loop()

        def deliver(deliveries: list[Delivery]) -> None:
            if not loop.is_closed():  # else nobody is left to be told
                loop.call_soon_threadsafe(_deliver, deliveries)

        worker = Worker(lambda: self._load(self._config), deliver)
        try:
            self._core = await asyncio.to_thread(worker.start)
        except (OSError, RuntimeError, MemoryError) as error:  # torch raises RuntimeError
            reason = f"{type(error).__name__}: {error}"
            raise EngineStartError(f"cannot load {self._config.model_dir}: {reason}") from error
        except asyncio.CancelledError:
            worker.dismiss()
            raise
        self._worker = worker
        config = self._config
        self._grammars = GrammarCompiler(
            config.vocabulary_path, self._core.vocab_size, config.grammar_timeout_s, self._idle
        )
        await self._grammars.start()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yield one event for each step that added a token."""
        worker = self._running_worker()
        if self._is_draining:
            raise EngineDraining("the engine is stopping and takes no new requests")
        info = self.info
        check_request(request, info.vocab_size, info.max_model_len)
        stream = _Stream(request)
        self._streams.add(stream)
        self._idle.clear()
        try:
            if request.grammar is not None:
                stream.guide = await self._guide(request)
            worker.submit(stream)
            while not stream.is_ended or not stream.outcomes.empty():
                outcome = await stream.outcomes.get()
                if isinstance(outcome, EngineError):
                    raise outcome
                yield outcome
        finally:
            self._retire(stream, worker)

    async def stats(self) -> EngineStats:
        """Count what runs now and what ran so far; who waits for a grammar waits."""
        stats, grammars = self._loaded().stats(), self._grammars
        assert grammars is not None
        return replace(
            stats,
            num_waiting=stats.num_waiting + self._num_compiling,
            num_grammars_compiled=grammars.num_compiled,
            grammar_compile_s=grammars.compile_s,
        )

    async def check_health(self) -> None:
        """Raise EngineDead before start(), after stop(), and when the worker gave up."""
        self._running_worker().check_health()

    async def drain(self) -> None:
        """Refuse new requests and return when the running ones have ended."""
        self._is_draining = True
        await self._idle.wait()

    async def stop(self) -> None:
        """End what still runs with EngineDead and release the model."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.stop)
        if self._grammars is not None:
            await self._grammars.stop()
        self._core = None

    async def _guide(self, request: EngineRequest) -> Guide:
        assert self._grammars is not None
        self._num_compiling += 1
        try:
            return await self._grammars.guide(request)
        finally:
            self._num_compiling -= 1

    def _loaded(self) -> EngineCore:
        if self._core is None:
            raise EngineDead("the engine is not running")
        return self._core

    def _running_worker(self) -> Worker:
        if self._worker is None:
            raise EngineDead("the engine is not running")
        return self._worker

    def _retire(self, stream: _Stream, worker: Worker) -> None:
        if not stream.is_ended:
            worker.abort(stream)
        self._streams.discard(stream)
        if not self._streams:
            self._idle.set()


def _deliver(deliveries: list[Delivery]) -> None:
    for ticket, outcome in deliveries:
        assert isinstance(ticket, _Stream)
        ticket.is_ended = isinstance(outcome, EngineError) or outcome.finish_reason is not None
        ticket.outcomes.put_nowait(outcome)
