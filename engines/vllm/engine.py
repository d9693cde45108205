"""vLLM behind the contract: its AsyncLLM in the engine process, its model in processes of its own.

Translation only. The API is that of vLLM 0.25 to 0.33 (docs/decisions/0019-vllm-as-it-is.md).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.base import EngineInfo, EngineRequest, TokenEvent
from engines.errors import EngineDead, EngineStartError, InvalidRequest
from engines.guest.arguments import lacks_grammar
from engines.guest.checkpoint import checked_config
from engines.guest.runner import GuestRun, GuestRunner
from engines.guest.tokenizer import tokenizer_folder
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec, check_names
from engines.vllm.adapters import misfit
from engines.vllm.arguments import CAPABILITIES, Arguments, arguments_of
from engines.vllm.counters import VllmCounters
from engines.vllm.requests import VllmOutputs, prompt_of, sampling_of

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class VllmEngine(QueuedEngine[GuestRun]):
    """vLLM behind its queue; implements engines.base.Engine."""

    def __init__(self, spec: EngineSpec) -> None:
        arguments = arguments_of(spec)
        super().__init__(VllmRunner(spec, arguments), arguments.max_num_waiting)


class VllmRunner(GuestRunner):
    """vLLM; implements engines.base.Runner."""

    library = "vLLM"

    def __init__(self, spec: EngineSpec, arguments: Arguments) -> None:
        self._vllm_counters = VllmCounters()
        super().__init__(arguments.vocabulary_path, self._vllm_counters)
        self._spec = spec
        self._arguments = arguments
        self._llm: AsyncLLM | None = None
        self._ids = itertools.count()
        self._adapters: dict[str, int] = {}  # numbers of adapters, by their keys
        self._fitting: set[str] = set()  # keys of those that are of this model
        self._config: Mapping[str, Any] = {}  # the checkpoint's config.json

    def _load(self) -> EngineInfo:
        stored = checked_config(Path(str(self._spec.model_dir)), self._spec.precision, "vLLM")
        self._config = stored
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
        check_names(f"vLLM {vllm.__version__} option", given, known)
        config = AsyncEngineArgs(**given).create_engine_config(UsageContext.ENGINE_CONTEXT)
        # Of gpt-oss it would apply no grammar before its own parser sees the end of the thoughts.
        config.structured_outputs_config.reasoning_parser = ""
        counters = self._vllm_counters
        self._llm = llm = AsyncLLM.from_vllm_config(
            config,
            stat_loggers=[lambda config, index: _Logger(counters)],
            disable_log_stats=arguments.engine["disable_log_stats"],
        )
        cache = llm.vllm_config.cache_config
        counters.num_blocks = (cache.num_gpu_blocks or 0) * arguments.num_ranks
        counters.block_size = cache.block_size
        return _info_of(llm, arguments)

    def _sampling(self, request: EngineRequest, guide: str | None, vocab_size: int) -> Any:
        from vllm import sampling_params as params

        given = sampling_of(request, None if guide is None else vocab_size - 1)
        if asked := given["repetition_detection"]:
            given["repetition_detection"] = params.RepetitionDetectionParams(**asdict(asked))
        return params.SamplingParams(
            **given,
            output_kind=params.RequestOutputKind.DELTA,
            structured_outputs=guide and params.StructuredOutputsParams(grammar=guide),
        )

    async def prepare(self, request: EngineRequest) -> GuestRun:
        """Check the request, and have its adapter loaded: its fault in a step would end vLLM."""
        run = await super().prepare(request)
        if (adapter := self._adapter(request)) is not None:
            await self._check_fits(request)
            try:
                await self._running().add_lora(adapter)
            except Exception as error:
                if (reason := await self._death()) is not None:
                    raise EngineDead(f"vLLM is dead: {reason}") from error
                raise InvalidRequest(
                    f"vLLM cannot load the adapter {adapter.lora_name!r}: {error}"
                ) from error
        return run

    async def _check_fits(self, request: EngineRequest) -> None:
        """Raises InvalidRequest for an adapter of another model."""
        if (asked := request.adapter) is None or asked.key in self._fitting:
            return
        with suppress(OSError, ValueError):  # vLLM says what is wrong
            if wrong := await asyncio.to_thread(misfit, Path(asked.path), self._config):
                raise InvalidRequest(f"the adapter {asked.name!r} cannot be used: {wrong}")
        self._fitting.add(asked.key)

    def _adapter(self, request: EngineRequest) -> Any:
        """Its LoRARequest, None for the model as it is; vLLM knows adapters by numbers."""
        if (asked := request.adapter) is None:
            return None
        from vllm.lora.request import LoRARequest

        number = self._adapters.setdefault(asked.key, len(self._adapters) + 1)
        return LoRARequest(lora_name=asked.name, lora_int_id=number, lora_path=asked.path)

    async def _events(self, run: GuestRun, arrived_s: float) -> AsyncGenerator[TokenEvent, None]:
        outputs = VllmOutputs(run.request, arrived_s)
        stream = self._running().generate(
            prompt_of(run.request),
            run.sampling,
            f"request-{next(self._ids)}",
            lora_request=self._adapter(run.request),
            priority=run.request.priority,
        )
        async with aclosing(stream):
            async for output in stream:
                if (event := outputs.event(output)) is not None:
                    yield event

    def _is_refusal(self, error: Exception) -> bool:
        from vllm.exceptions import VLLMValidationError

        # Its own class in some places and versions; what fails later is no ValueError.
        return isinstance(error, ValueError | VLLMValidationError)

    async def _check(self) -> None:
        await self._running().check_health()

    def _shut_down(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()

    def _running(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineDead("the engine is not running")
        return self._llm


class _Logger:
    """A StatLoggerBase by its methods; vLLM makes one for each of its engines, or one for all."""

    def __init__(self, counters: VllmCounters) -> None:
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
    lacks = lacks_grammar(arguments.vocabulary_path)
    if config.lora_config is None:
        lacks |= {"adapter"}
    if drafts is not None:  # whose verification lacks them
        lacks |= {"min_p", "logit_bias"}
    return EngineInfo(
        engine="vllm",
        version=vllm.__version__,
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        max_num_seqs=scheduler.max_num_seqs * arguments.num_ranks,
        max_num_batched_tokens=scheduler.max_num_batched_tokens * arguments.num_ranks,
        capabilities=replace(
            CAPABILITIES,
            lacks=CAPABILITIES.lacks | lacks,
            max_drafts=0 if drafts is None else drafts.num_speculative_tokens,
            max_logprobs=None if model.max_logprobs == -1 else model.max_logprobs,
        ),
    )
