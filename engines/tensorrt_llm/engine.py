"""TensorRT-LLM behind the contract: its LLM in the engine process, its model in others below it.

Translation only. The API is that of the PyTorch backend of TensorRT-LLM 1.2 and 1.3
(docs/decisions/0022-tensorrt-llm-by-its-source.md); it has not been run by us yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from engines.base import EngineInfo, EngineRequest, Receive, TokenEvent
from engines.errors import EngineDead, EngineError, EngineStartError
from engines.guest.arguments import lacks_grammar
from engines.guest.checkpoint import checked_config
from engines.guest.requests import cache_salt, prompt_token_ids
from engines.guest.runner import GuestRun, GuestRunner
from engines.guest.tokenizer import tokenizer_folder
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec, check_names
from engines.tensorrt_llm.arguments import (
    CAPABILITIES,
    GROUPS,
    LIBRARY,
    TorchArguments,
    arguments_of,
)
from engines.tensorrt_llm.counters import TrtLlmCounters
from engines.tensorrt_llm.drafts import decoding_config
from engines.tensorrt_llm.release import is_wanted, unwanted
from engines.tensorrt_llm.requests import TensorRtOutputs, sampling_of

if TYPE_CHECKING:
    from tensorrt_llm import LLM

_STATS_PAUSE_S: Final = 0.5
_STATS_WAIT_S: Final = 60.0  # for the next step's: once given up, they end until a new request
# How its guided decoder begins what it raises of a grammar (pyexecutor/grammar_matcher.py).
_GRAMMAR_ERROR: Final = "LLGuidance matcher error"
# Steps that fail one after the other without a token between them: after an illegal access to
# memory every step fails, each as an error of its requests alone.
_MAX_FAILED_STEPS: Final = 3


log = logging.getLogger(__name__)


class TrtLlmEngine(QueuedEngine[GuestRun]):
    """TensorRT-LLM behind its queue; implements engines.base.Engine."""

    def __init__(self, spec: EngineSpec) -> None:
        arguments = arguments_of(spec)
        super().__init__(TrtLlmRunner(spec, arguments), arguments.max_num_waiting)


class TrtLlmRunner(GuestRunner):
    """TensorRT-LLM; implements engines.base.Runner."""

    library = LIBRARY

    def __init__(self, spec: EngineSpec, arguments: TorchArguments) -> None:
        self._trt_counters = TrtLlmCounters()
        super().__init__(arguments.vocabulary_path, self._trt_counters)
        self._spec = spec
        self._arguments = arguments
        self._llm: LLM | None = None
        self._death_words: str | None = None  # it shuts itself down when its model's process dies
        self._watching: asyncio.Task[None] | None = None
        self._num_failed_steps = 0
        self._since_failure: WeakSet[GuestRun] = WeakSet()  # begun after the last step that failed

    def begin(self, run: GuestRun, receive: Receive, arrived_s: float) -> None:
        """Follow the request in a task, and the engine's steps in another; raises EngineDead."""
        super().begin(run, receive, arrived_s)
        self._since_failure.add(run)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name=f"{LIBRARY}-stats")

    async def stop(self) -> None:
        """End what still runs with EngineDead, and TensorRT-LLM's processes."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await super().stop()

    def _load(self) -> EngineInfo:
        config = checked_config(Path(str(self._spec.model_dir)), self._spec.precision, LIBRARY)
        import tensorrt_llm
        from tensorrt_llm import LLM
        from tensorrt_llm.llmapi import TorchLlmArgs

        here = tensorrt_llm.__version__
        if not is_wanted(here):
            raise EngineStartError(unwanted(here))
        given = {**self._arguments.engine, **self._tokenizer(config["vocab_size"])}
        given.setdefault("max_seq_len", config.get("max_position_embeddings"))
        check_names(f"{LIBRARY} {here} option", given, TorchLlmArgs.model_fields)
        self._llm = llm = LLM(**{name: _grouped(name, value) for name, value in given.items()})
        return _info_of(llm, here, config["vocab_size"], self._arguments)

    def _tokenizer(self, vocab_size: int) -> dict[str, Any]:
        """The tokenizer's arguments; only grammars need a tokenizer."""
        path = self._arguments.vocabulary_path
        if path is None:
            return {"skip_tokenizer_init": True}
        folder = tokenizer_folder(path, vocab_size)
        return {"tokenizer": str(folder), "guided_decoding_backend": "llguidance"}

    def _sampling(self, request: EngineRequest, guide: str | None, vocab_size: int) -> Any:
        from tensorrt_llm.llmapi import GuidedDecodingParams, SamplingParams

        return SamplingParams(
            **sampling_of(request, None if guide is None else vocab_size - 1, vocab_size),
            guided_decoding=guide and GuidedDecodingParams(grammar=guide),
        )

    async def _events(self, run: GuestRun, arrived_s: float) -> AsyncGenerator[TokenEvent, None]:
        request = run.request
        outputs = TensorRtOutputs(request, queued_s=time.monotonic() - arrived_s)
        result = self._running().generate_async(
            {"prompt_token_ids": prompt_token_ids(request)},
            sampling_params=run.sampling,
            streaming=True,
            cache_salt=cache_salt(request),
        )
        is_first = True
        try:
            async for output in result:
                if (event := outputs.event(output)) is not None:
                    self._trt_counters.count(event, len(request.prompt_token_ids), is_first)
                    is_first = False
                    self._num_failed_steps = 0
                    yield event
        finally:
            if not result.finished:
                result.abort()

    def _is_refusal(self, error: Exception) -> bool:
        """Whether the error is a refusal: a ValueError before anything runs."""
        return isinstance(error, ValueError) or self._is_of_grammar(error)

    def _is_of_grammar(self, error: Exception) -> bool:
        return _GRAMMAR_ERROR in str(error)

    async def _error_of(self, run: GuestRun, error: Exception) -> EngineError:
        """What is neither of one request nor a refusal has ended it: it has shut itself down."""
        from tensorrt_llm.llmapi import RequestError

        if not isinstance(error, RequestError | ValueError):
            self._death_words = self._death_words or f"{type(error).__name__}: {error}"
        elif not self._is_refusal(error):
            self._count_failure(run, str(error))
        return await super()._error_of(run, error)

    def _count_failure(self, run: GuestRun, words: str) -> None:
        """Count a step that failed once, however many requests were in it."""
        if run not in self._since_failure:
            return
        self._since_failure.clear()
        self._num_failed_steps += 1
        if self._num_failed_steps >= _MAX_FAILED_STEPS:
            steps = f"{self._num_failed_steps} steps failed in a row"
            self._death_words = (
                self._death_words or f"{steps} without a token, the last by: {words}"
            )

    async def _check(self) -> None:
        llm = self._running()
        if self._death_words is not None:
            raise EngineDead(self._death_words)
        is_healthy = getattr(llm, "_check_health", None)  # of 1.3; trtllm-serve asks the same
        if is_healthy is not None and not is_healthy():
            raise EngineDead("its health check fails")

    def _shut_down(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()

    async def _watch(self) -> None:
        """Take the statistics of steps while requests run; of others there are none."""
        try:
            while self._inside:
                await asyncio.sleep(_STATS_PAUSE_S)  # there are none before a request is known
                async for iteration in self._running().get_stats_async(timeout=_STATS_WAIT_S):
                    self._trt_counters.record(iteration, self._arguments.num_ranks)
        except Exception as error:  # requests continue without
            log.warning("%s gives no statistics: %s: %s", LIBRARY, type(error).__name__, error)

    def _running(self) -> LLM:
        if self._llm is None:
            raise EngineDead("the engine is not running")
        return self._llm


def _grouped(name: str, value: Any) -> Any:
    """A mapping as the class that a field has; the class names what it does not know."""
    if name not in (*GROUPS, "speculative_config") or value is None:
        return value
    from tensorrt_llm import llmapi

    try:
        if name == "speculative_config":
            return decoding_config(llmapi, value)
        make: Callable[..., Any] = getattr(llmapi, GROUPS[name])
        return make(**value)
    except (TypeError, ValueError, AssertionError) as error:  # as its class and release have it
        raise EngineStartError(f"{LIBRARY}'s option {name!r}: {error}") from error


def _info_of(llm: LLM, version: str, vocab_size: int, arguments: TorchArguments) -> EngineInfo:
    return EngineInfo(
        engine="tensorrt_llm",
        version=version,
        max_model_len=llm.args.max_seq_len,
        vocab_size=vocab_size,
        max_num_seqs=llm.args.max_batch_size * arguments.num_ranks,
        max_num_batched_tokens=llm.args.max_num_tokens * arguments.num_ranks,
        capabilities=replace(
            CAPABILITIES,
            lacks=CAPABILITIES.lacks | lacks_grammar(arguments.vocabulary_path),
            max_drafts=arguments.max_drafts,
        ),
    )
