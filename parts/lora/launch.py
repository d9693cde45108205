"""Which engines can serve adapters, and the options that they get for them at a start."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engines.spec import EngineSpec
from parts.lora.files import CONFIG, AdapterError, check_native, served_adapter
from parts.lora.registry import candidates
from parts.lora.settings import LoraSettings
from profiles.catalogue.models import Profile
from profiles.errors import InvalidConstraint
from profiles.hardware.machine import Hardware
from profiles.selection.placement import Placement
from service.run.launching import LaunchPart
from service.settings.settings import Settings

log = logging.getLogger("harmonium.lora")

_VLLM_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vllm.config.lora.MaxLoRARanks
_REMEDY: Final = "choose a profile of vLLM, or merge the adapter (`harmonium merge`)"


class _Lora(LaunchPart):
    def check(self, settings: Settings, profile: Profile, num_replicas: int) -> None:
        own = settings.of(LoraSettings)
        if own.peft_source is None:
            return
        is_native, is_on_gpu = profile.engine == "native", profile.gpu is not None
        if not is_native and profile.engine != "vllm":
            raise InvalidConstraint(
                f"NIM_PEFT_SOURCE is set, and {profile.title} uses engine {profile.engine}, which "
                f"computes no adapters; choose a native profile, {_REMEDY}"
            )
        if not is_native and not is_on_gpu:
            raise InvalidConstraint(
                f"NIM_PEFT_SOURCE is set, and {profile.title} uses vLLM on a CPU, where it computes"
                " no adapters of gpt-oss; choose a native profile"
            )
        if is_native and is_on_gpu and profile.parallelism.tp > 1:
            raise InvalidConstraint(
                f"NIM_PEFT_SOURCE is set, and {profile.title} uses engine native, which on GPUs "
                f"computes adapters without tensor parallelism only; {_REMEDY}, or choose a native "
                "profile with tp 1"
            )
        try:
            if (own.peft_source / CONFIG).exists():
                raise AdapterError(f"{own.peft_source}: is an adapter; name the folder above it")
            found = candidates(own.peft_source)
            log.info("LoRA adapters: %s", ", ".join(found) or f"no {CONFIG} in a subfolder")
            for name, folder in found.items():
                served_adapter(name, folder, own.max_lora_rank)
                if is_native:
                    check_native(folder, has_experts=not is_on_gpu)
        except OSError as error:
            raise InvalidConstraint(
                f"NIM_PEFT_SOURCE: {own.peft_source}: {error.strerror}; name a folder of adapters"
            ) from None
        except AdapterError as error:
            raise InvalidConstraint(f"NIM_PEFT_SOURCE: {error}") from None

    def with_options(
        self, spec: EngineSpec, placement: Placement, hardware: Hardware, settings: Settings
    ) -> EngineSpec:
        own = settings.of(LoraSettings)
        if own.peft_source is None:
            return spec
        if spec.engine == "native":
            return replace(spec, parts={**spec.parts, "lora": native_limits(own)})
        return replace(spec, options={**vllm_options(own), **spec.options})


def native_limits(own: LoraSettings) -> Mapping[str, Any]:
    """The settings as AdapterLimits (native/kept.py) of the native engine."""
    return {
        "max_used": own.max_gpu_loras,
        "max_kept": max(own.max_cpu_loras, own.max_gpu_loras),
        "max_rank": own.max_lora_rank,
    }


def vllm_options(own: LoraSettings) -> Mapping[str, Any]:
    """The settings by vLLM's names."""
    return {
        "enable_lora": True,
        "max_loras": own.max_gpu_loras,
        "max_cpu_loras": max(own.max_cpu_loras, own.max_gpu_loras),
        "max_lora_rank": next(rank for rank in _VLLM_RANKS if rank >= own.max_lora_rank),
    }


LAUNCH: Final = _Lora()
