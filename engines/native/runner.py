"""The asyncio face of a step loop; the work is done in engines/native/worker.py's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from engines.base import Capabilities, EngineInfo, EngineRequest, EngineStats, Receive
from engines.errors import EngineDead, EngineStartError
from engines.native.backends.base import MAX_LOGPROBS
from engines.native.grammar import vocabulary
from engines.native.grammar.compiler import GrammarCompiler
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from engines.native.options import StepOptions
from engines.native.worker import Delivery, FoundPrefix, StepWorker, Submission
from engines.validation import check_request

LoadCore = Callable[[], EngineCore]
T = TypeVar("T")


class CoreRunner:
    """A core and the compiler of its grammars; implements engines.base.Runner."""

    def __init__(
        self,
        engine: str,
        version: str,
        config: StepOptions,
        load: LoadCore,
        idle: asyncio.Event,
        vocab_size: Callable[[], int] | None = None,
    ) -> None:
        """`load` is called in the worker's thread; `idle`: set while there are no requests;
        `vocab_size`: the model's, where it is known before the load."""
        self._engine, self._version = engine, version
        self._config = config
        self._load = load
        self._idle = idle
        self._vocab_size = vocab_size
        self._core: EngineCore | None = None
        self._worker: StepWorker | None = None
        self._grammars: GrammarCompiler | None = None

    @property
    def info(self) -> EngineInfo:
        core = self._loaded()
        limits = core.scheduler.limits
        return EngineInfo(
            engine=self._engine,
            version=self._version,
            max_model_len=limits.max_model_len,
            vocab_size=core.vocab_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            capabilities=Capabilities(
                frozenset({"adapter"}), max_drafts=limits.max_drafts, max_logprobs=MAX_LOGPROBS
            ),
        )

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        def deliver(*of_step: *tuple[list[Submission], list[int], list[Delivery]]) -> None:
            if not loop.is_closed():  # else no listener is left
                loop.call_soon_threadsafe(_deliver, *of_step)

        worker = StepWorker(self._load, deliver)
        making = asyncio.create_task(self._make_tokenizer(), name="vocabulary")
        try:
            self._core = await asyncio.to_thread(worker.start)
        except (OSError, RuntimeError, MemoryError) as error:  # torch raises RuntimeError
            reason = f"{type(error).__name__}: {error}"
            raise EngineStartError(f"cannot load {self._config.model_dir}: {reason}") from error
        except asyncio.CancelledError:
            worker.dismiss()
            raise
        finally:
            await making
        self._worker = worker
        config = self._config
        self._grammars = GrammarCompiler(
            config.vocabulary_path, self._core.vocab_size, config.grammar_timeout_s, self._idle
        )
        await self._grammars.start()

    async def _make_tokenizer(self) -> None:
        """Make the grammars' tokenizer during loading; later it would stop all streams for a
        second."""
        config = self._config
        if config.vocabulary_path is None or self._vocab_size is None:
            return
        with suppress(EngineStartError, OSError):  # the load tells what is wrong
            load = vocabulary.load_tokenizer
            await asyncio.to_thread(load, config.vocabulary_path, self._vocab_size())

    async def prepare(self, request: EngineRequest) -> Submission:
        info = self.info
        check_request(request, info.vocab_size, info.max_model_len)
        guide = None
        if request.grammar is not None:
            assert self._grammars is not None
            guide = await self._grammars.guide(request)
            await asyncio.to_thread(guide.follow, request.generated_token_ids)
        submission = Submission(request, guide)
        num_tokens = len(request.prompt_token_ids) + len(request.generated_token_ids)
        if num_tokens > info.max_num_batched_tokens:  # a short one enters soon in any case
            blocks = self._loaded().scheduler.blocks
            longest = info.max_model_len
            submission.prefix = await asyncio.to_thread(find_prefix, request, longest, blocks)
        return submission

    def num_cached_tokens(self, run: Submission) -> int | None:
        return None if run.prefix is None else run.prefix.num_tokens

    def begin(self, run: Submission, receive: Receive, arrived_s: float) -> None:
        run.receive, run.arrived_s = receive, arrived_s
        self._running_worker().submit(run)

    def abort(self, run: Submission) -> None:
        if self._worker is not None:
            self._worker.abort(run)

    def call(self, work: Callable[[EngineCore], T]) -> Future[T]:
        return self._running_worker().call(work)

    async def stats(self) -> EngineStats:
        stats, grammars = self._loaded().stats(), self._grammars
        assert grammars is not None
        return replace(
            stats, num_grammars_compiled=grammars.num_compiled, grammar_compile_s=grammars.compile_s
        )

    async def check_health(self) -> None:
        """Raise EngineDead before start(), after stop(), and when the worker gave up."""
        self._running_worker().check_health()

    async def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.stop)
        if self._grammars is not None:
            await self._grammars.stop()
        self._core = None

    def _loaded(self) -> EngineCore:
        if self._core is None:
            raise EngineDead("the engine is not running")
        return self._core

    def _running_worker(self) -> StepWorker:
        if self._worker is None:
            raise EngineDead("the engine is not running")
        return self._worker


def _deliver(submissions: list[Submission], tokens: list[int], deliveries: list[Delivery]) -> None:
    for submission, token in zip(submissions, tokens, strict=True):
        submission.receive(token)
    for submission, outcome in deliveries:
        submission.receive(outcome)


def find_prefix(request: EngineRequest, max_model_len: int, blocks: BlockManager) -> FoundPrefix:
    """Look in the prefix cache, from any thread: nothing is changed or held."""
    sequence = Sequence(request, max_model_len)
    num_blocks = blocks.find_prefix(sequence).num_blocks
    return FoundPrefix(num_blocks * blocks.block_size, tuple(sequence.block_hashes))
