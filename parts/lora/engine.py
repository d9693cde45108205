"""Adapters in the native engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from engines.base import Runner
from engines.errors import EngineStartError
from engines.native.assemble import EnginePart
from engines.native.backends.base import AdapterTable, Capacity
from engines.native.config import ModelConfig, NativeConfig
from engines.native.engine_option import EngineOption
from engines.native.host.memory import available_bytes
from engines.native.loop.option import Loop
from engines.native.runner import CoreRunner
from engines.native.weights import tensor_specs
from engines.native.worker import Submission
from parts.lora.native.kept import AdapterLimits, KeptAdapters
from parts.lora.native.loading import AdapterLoader
from parts.lora.native.runner import AdapterRunner

log = logging.getLogger("harmonium.lora")


class LoraOption(EngineOption):
    """Loads an adapter when a request asks for it, and keeps those used last."""

    def __init__(self, limits: AdapterLimits) -> None:
        self._limits = limits
        self._table: AdapterTable | None = None

    def attach(self, loop: Loop, capacity: Capacity) -> None:
        """Raises EngineStartError where there is no memory for them."""
        table, limits = capacity.adapters, self._limits
        assert table is not None, "around() lets no other pass"
        needed, available = limits.max_kept * table.num_bytes(limits.max_rank), available_bytes()
        if available is not None and needed > available:
            raise EngineStartError(
                f"{limits.max_kept} LoRA adapters of rank {limits.max_rank} take {needed} bytes,"
                f" and {available} bytes of memory are free; lower NIM_MAX_CPU_LORAS or"
                " NIM_MAX_LORA_RANK"
            )
        log.info("LoRA adapters may take up to %.1f GB of memory", needed / 1e9)
        self._table = table

    def around(self, config: NativeConfig, runner: CoreRunner) -> Runner[Submission]:
        """Raises EngineStartError where the backend computes no adapters."""
        if config.tensor_parallel > 1:
            raise EngineStartError(
                "the native engine computes LoRA adapters without tensor parallelism only; choose"
                " another profile, or unset NIM_PEFT_SOURCE and merge the adapter"
                " (`harmonium merge`)"
            )
        return AdapterRunner(runner, lambda: self._kept(config, runner))

    def _kept(self, config: NativeConfig, runner: CoreRunner) -> KeptAdapters:
        assert self._table is not None, "the core was loaded"
        specs = tensor_specs(ModelConfig.from_dir(config.model_dir))
        loader = AdapterLoader(specs, self._limits.max_rank, self._table)
        return KeptAdapters(runner, self._table, loader, self._limits)


class _Lora(EnginePart):
    needs_prefix_cache: ClassVar[bool] = False

    def config_for(self, config: NativeConfig, given: Mapping[str, Any]) -> NativeConfig:
        limits = AdapterLimits(**given)
        return replace(config, max_adapters=limits.max_used, max_adapter_rank=limits.max_rank)

    def for_spec(self, given: Mapping[str, Any]) -> LoraOption:
        return LoraOption(AdapterLimits(**given))


ENGINE: Final = _Lora()
