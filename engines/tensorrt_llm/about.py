"""TensorRT-LLM."""

from __future__ import annotations

from typing import Any, Final

from engines.about import About
from engines.base import Capabilities
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec
from engines.tensorrt_llm import release


def _create(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.tensorrt_llm.engine import TrtLlmEngine

    return TrtLlmEngine(spec)


def _capabilities() -> Capabilities:
    from engines.tensorrt_llm.arguments import CAPABILITIES

    return CAPABILITIES


ABOUT: Final = About(
    _create,
    release.missing,
    capabilities=_capabilities,
    # It sends no telemetry, and looks for nothing on the hub.
    environment={"TRTLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
    distributions=("tensorrt-llm",),
)
