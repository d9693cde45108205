"""Adapters in the native engine."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from engines.base import Adapter, Runner
from engines.errors import EngineStartError, InvalidRequest
from engines.native.assemble import EnginePart
from engines.native.backends.base import AdapterTable, Capacity
from engines.native.config import ModelConfig, NativeConfig
from engines.native.engine_option import EngineOption
from engines.native.host.memory import available_bytes
from engines.native.loop.option import Loop
from engines.native.runner import CoreRunner
from engines.native.weights import tensor_specs
from engines.native.worker import Submission
from parts.lora.files import AdapterError, served_adapter
from parts.lora.native.kept import AdapterLimits, KeptAdapters
from parts.lora.native.loading import AdapterLoader
from parts.lora.native.runner import AdapterRunner

log = logging.getLogger("harmonium.lora")


class LoraOption(EngineOption):
    """Loads an adapter when a request asks for it, and keeps those used last."""

    def __init__(self, limits: AdapterLimits) -> None:
        self._limits = limits
        self._table: AdapterTable  # from attach() on
        self._own: list[str] = []  # keys, of adapter(), in their order

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
        if config.tensor_parallel > 1 and config.device == "cuda":
            raise EngineStartError(
                "on GPUs the native engine computes LoRA adapters without tensor parallelism only;"
                " choose another profile, or unset NIM_PEFT_SOURCE and merge the adapter"
                " (`harmonium merge`)"
            )
        return AdapterRunner(runner, lambda: self._kept(config, runner))

    def adapter(self, config: NativeConfig, folder: Path) -> Adapter:
        try:
            found = served_adapter(folder.name, folder, self._limits.max_rank)
        except AdapterError as error:
            raise InvalidRequest(str(error)) from None
        if found.key not in self._own:
            prepared = self._loader(config).load(found)
            if len(self._own) == self._limits.max_used:
                self._table.remove(self._own.pop(0))
            self._table.put(found.key, prepared)
            self._own.append(found.key)
        return found

    def _kept(self, config: NativeConfig, runner: CoreRunner) -> KeptAdapters:
        return KeptAdapters(runner, self._table, self._loader(config), self._limits)

    def _loader(self, config: NativeConfig) -> AdapterLoader:
        specs = tensor_specs(ModelConfig.from_dir(config.model_dir))
        return AdapterLoader(specs, self._limits.max_rank, self._table)


class _Lora(EnginePart):
    needs_prefix_cache: ClassVar[bool] = False

    def config_for(self, config: NativeConfig, given: Mapping[str, Any]) -> NativeConfig:
        limits = AdapterLimits(**given)
        return replace(config, max_adapters=limits.max_used, max_adapter_rank=limits.max_rank)

    def for_spec(self, given: Mapping[str, Any]) -> LoraOption:
        return LoraOption(AdapterLimits(**given))


ENGINE: Final = _Lora()
