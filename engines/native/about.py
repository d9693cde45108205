"""The native engine."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

from engines.about import About
from engines.adding import command_for
from engines.base import Capabilities
from engines.native.compiler import missing_for_triton
from engines.native.cuda_context import begin_contexts
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec


def _create(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.native.config import NativeConfig

    config = NativeConfig.from_spec(spec)
    if config.device == "cuda":
        begin_contexts(config.num_gpus)  # before PyTorch, whose import takes as long
    from engines.native.assemble import config_of_spec, options_of_spec
    from engines.native.engine import NativeEngine

    options = options_of_spec(spec.parts, config)
    return NativeEngine(config_of_spec(spec.parts, config), options=options)


def _missing() -> str | None:
    if find_spec("torch") is not None:
        return None
    return "not installed: PyTorch is missing (pip install torch)"


def _cpu_only() -> str | None:
    if find_spec("torch") is not None and ("+cpu" in version("torch") or not find_spec("triton")):
        return (
            "built for CPUs only: PyTorch is its CPU build, without Triton; for the CUDA build "
            f"{command_for()}"
        )
    missing = missing_for_triton(version("triton")) if find_spec("triton") else None
    return missing and f"built for CPUs only: {missing}"


def _capabilities() -> Capabilities:
    from engines.native.backends.base import MAX_LOGPROBS

    return Capabilities(frozenset({"adapter"}), max_logprobs=MAX_LOGPROBS)


ABOUT: Final = About(_create, _missing, _cpu_only, _capabilities, has_our_scheduler=True)
