"""llama.cpp, by llama-cpp-python."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from engines.about import About
from engines.adding import command_for
from engines.base import Capabilities
from engines.queueing.admission import QueuedEngine
from engines.spec import EngineSpec


def _create(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.llama_cpp.config import LlamaCppConfig
    from engines.llama_cpp.engine import LlamaCppEngine

    return LlamaCppEngine(LlamaCppConfig.from_spec(spec))


def _missing() -> str | None:
    is_here = find_spec("llama_cpp") is not None
    return None if is_here else f"not installed: {command_for('llama-cpp')}"


def _cpu_only() -> str | None:
    found = find_spec("llama_cpp")
    if not found or not found.origin or any(Path(found.origin).parent.glob("lib/*ggml-cuda*")):
        return None
    return (
        f"built for CPUs only: llama-cpp-python is built without CUDA; {command_for('llama-cpp')}"
    )


_CAPABILITIES: Final = Capabilities(frozenset({"adapter"}))

ABOUT: Final = About(_create, _missing, _cpu_only, lambda: _CAPABILITIES, has_our_scheduler=True)
