"""vLLM behind the contract: its AsyncLLM in the engine process, its model in processes of its own.

Translation only. The API is that of vLLM 0.25 to 0.32 (docs/decisions/0019-vllm-as-it-is.md).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.admission import QueuedEngine
from engines.base import EngineInfo, EngineRequest, EngineStats, Outcome, Receive
from engines.errors import (
    EngineDead,
    EngineError,
    EngineStartError,
    InvalidRequest,
    RequestFailed,
)
from engines.spec import EngineSpec
from engines.validation import check_request
from engines.vllm.arguments import (
    CAPABILITIES,
    Arguments,
    arguments_of,
    check_options,
    checked_config,
)
from engines.vllm.counters import Counters
from engines.vllm.grammars import Grammars
from engines.vllm.requests import Outputs, prompt_of, sampling_of
from engines.vllm.tokenizer import tokenizer_folder

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Run:
    """One request: in vLLM's form, and the task that follows it once it has begun."""

    request: EngineRequest
    prompt: dict[str, Any]
    sampling: Any  # vLLM's SamplingParams
    following: asyncio.Task[None] | None = None


class VllmEngine(QueuedEngine[Run]):
    """vLLM behind its queue; implements engines.base.Engine."""

    def __init__(self, spec: EngineSpec) -> None:
        arguments = arguments_of(spec)
        super().__init__(VllmRunner(spec, arguments), arguments.max_num_waiting)


class VllmRunner:
    """vLLM; implements engines.base.Runner."""

    def __init__(self, spec: EngineSpec, arguments: Arguments) -> None:
        self._spec = spec
        self._arguments = arguments
        self._llm: AsyncLLM | None = None
        self._info: EngineInfo | None = None
        self._grammars: Grammars | None = None
        self._counters = Counters()
        self._inside: dict[Run, Receive] = {}
        self._ids = itertools.count()

    @property
    def info(self) -> EngineInfo:
        """What vLLM says of itself; raises EngineDead before start()."""
        if self._info is None:
            raise EngineDead("the engine is not running")
        return self._info

    async def start(self) -> None:
        """Load the checkpoint, for minutes; raises EngineStartError when it cannot be served."""
        try:
            self._llm = llm = await asyncio.to_thread(self._load)
        except EngineStartError:
            raise
        except Exception as error:  # whatever its libraries raise; vLLM has logged the cause
            reason = f"{type(error).__name__}: {error}"
            raise EngineStartError(f"vLLM cannot be started: {reason}") from error
        self._info = _info_of(llm, self._arguments)
        cache = llm.vllm_config.cache_config
        self._counters.num_blocks = (cache.num_gpu_blocks or 0) * self._arguments.num_ranks
        self._counters.block_size = cache.block_size
        if self._arguments.vocabulary_path is not None:
            self._grammars = Grammars(self._info.vocab_size)
            await self._grammars.start()

    async def prepare(self, request: EngineRequest) -> Run:
        """Check the request and try its grammar; raises InvalidRequest."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        info = self.info
        check_request(request, info.vocab_size, info.max_model_len)
        guide, end = None, None
        if request.grammar is not None:
            assert self._grammars is not None
            guide = StructuredOutputsParams(grammar=await self._grammars.written(request))
            end = info.vocab_size - 1
        keywords = sampling_of(request, end)
        try:
            sampling = SamplingParams(
                **keywords, output_kind=RequestOutputKind.DELTA, structured_outputs=guide
            )
        except Exception as error:  # the class for it is not the same in every version
            raise InvalidRequest(f"vLLM refuses the request: {error}") from error
        return Run(request, prompt_of(request), sampling)

    def begin(self, run: Run, receive: Receive, arrived_s: float) -> None:
        """Follow it in a task; raises EngineDead."""
        llm = self._running()
        self._inside[run] = receive
        self._counters.count_prompt(len(run.request.prompt_token_ids))
        run.following = asyncio.create_task(self._follow(llm, run, arrived_s), name="vllm-request")

    def abort(self, run: Run) -> None:
        """Nothing more is received of it; vLLM is told when its task ends."""
        self._inside.pop(run, None)
        if run.following is not None:
            run.following.cancel()

    async def stats(self) -> EngineStats:
        """Count what runs now and what ran so far."""
        self._running()
        stats, grammars = self._counters.stats(len(self._inside)), self._grammars
        if grammars is None:
            return stats
        return replace(
            stats,
            num_grammars_compiled=grammars.num_compiled,
            grammar_compile_s=grammars.compile_s,
        )

    async def check_health(self) -> None:
        """Raise EngineDead before start(), after stop(), and when a process of vLLM is gone."""
        llm = self._running()
        try:
            await llm.check_health()
        except Exception as error:
            raise EngineDead(f"vLLM is dead: {type(error).__name__}: {error}") from error

    async def stop(self) -> None:
        """End what still runs with EngineDead, and vLLM's processes."""
        llm, self._llm = self._llm, None
        following = [run.following for run in self._inside if run.following is not None]
        for run in list(self._inside):
            self._give(run, EngineDead("the engine has been stopped"))
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        if self._grammars is not None:
            await self._grammars.stop()
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

    def _load(self) -> AsyncLLM:
        stored = checked_config(Path(str(self._spec.model_dir)), self._spec.precision)
        import vllm
        from vllm import AsyncEngineArgs
        from vllm.config import StructuredOutputsConfig
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = self._arguments
        if current_platform.is_cpu() == arguments.is_gpu:
            raise EngineStartError(
                f"num_devices is {self._spec.num_devices}, but vLLM {vllm.__version__} here is its "
                f"build for {current_platform.device_type}; install the one that is needed"
            )
        given: dict[str, Any] = {**arguments.engine, "skip_tokenizer_init": True}
        if arguments.vocabulary_path is not None:
            folder = tokenizer_folder(arguments.vocabulary_path, stored["vocab_size"])
            given |= {
                "skip_tokenizer_init": False,
                "tokenizer": str(folder),
                "structured_outputs_config": StructuredOutputsConfig(backend="guidance"),
            }
        known = [field.name for field in fields(AsyncEngineArgs)]
        check_options(given, known, vllm.__version__)
        config = AsyncEngineArgs(**given).create_engine_config(UsageContext.ENGINE_CONTEXT)
        # Of gpt-oss it would apply no grammar before its own parser sees the end of the thoughts.
        config.structured_outputs_config.reasoning_parser = ""
        counters = self._counters
        return AsyncLLM.from_vllm_config(
            config,
            stat_loggers=[lambda config, index: _Logger(counters)],
            disable_log_stats=arguments.engine["disable_log_stats"],
        )

    async def _follow(self, llm: AsyncLLM, run: Run, arrived_s: float) -> None:
        outputs = Outputs(run.request, arrived_s)
        try:
            stream = llm.generate(
                run.prompt,
                run.sampling,
                f"request-{next(self._ids)}",
                priority=run.request.priority,
            )
            async with aclosing(stream):
                async for output in stream:
                    if (event := outputs.event(output)) is not None:
                        self._give(run, event)
        except EngineError as error:
            self._give(run, error)
        except Exception as error:
            self._give(run, await self._error_of(llm, run, error))

    def _give(self, run: Run, outcome: Outcome) -> None:
        receive = self._inside.get(run)
        if receive is None:
            return  # aborted
        if isinstance(outcome, EngineError) or outcome.finish_reason is not None:
            del self._inside[run]
        receive(outcome)

    async def _error_of(self, llm: AsyncLLM, run: Run, error: Exception) -> EngineError:
        from vllm.exceptions import VLLMValidationError

        words = f"{type(error).__name__}: {error}"
        if llm.errored:
            return EngineDead(f"vLLM is dead: {words}")
        # Its own class in some places and versions; what fails later is no ValueError.
        if isinstance(error, (ValueError, VLLMValidationError)):
            if run.request.grammar is None or self._grammars is None:
                return InvalidRequest(f"vLLM refuses the request: {error}")
            return await self._grammars.refusal(run.request.grammar, str(error))
        log.error("vLLM failed in a request: %s", words, exc_info=error)
        return RequestFailed(f"vLLM failed in this request: {words}")

    def _running(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineDead("the engine is not running")
        return self._llm


class _Logger:
    """A StatLoggerBase by its methods; vLLM makes one for each of its engines, or one for all."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self._counters.record(scheduler_stats, iteration_stats, engine_idx)

    def log_engine_initialized(self) -> None:
        """vLLM has started."""

    def log(self) -> None:
        """Nothing is printed."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """It never sleeps."""


def _info_of(llm: AsyncLLM, arguments: Arguments) -> EngineInfo:
    import vllm

    config = llm.vllm_config
    model, scheduler, drafts = (
        config.model_config,
        config.scheduler_config,
        config.speculative_config,
    )
    is_free = drafts is None  # of what its verifying of guesses does not know
    return EngineInfo(
        engine="vllm",
        version=vllm.__version__,
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        max_num_seqs=scheduler.max_num_seqs * arguments.num_ranks,
        max_num_batched_tokens=scheduler.max_num_batched_tokens * arguments.num_ranks,
        capabilities=replace(
            CAPABILITIES,
            grammar=arguments.vocabulary_path is not None,
            min_p=is_free,
            logit_bias=is_free,
            max_drafts=0 if drafts is None else drafts.num_speculative_tokens,
            max_logprobs=None if model.max_logprobs == -1 else model.max_logprobs,
        ),
    )
