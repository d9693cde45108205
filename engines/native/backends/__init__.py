"""The devices a step is computed on; a backend's libraries load when it is chosen."""

from __future__ import annotations

from importlib.util import find_spec

from engines.errors import EngineStartError
from engines.native.backends.base import Backend
from engines.native.config import ModelConfig, NativeConfig


def load_backend(config: NativeConfig, model: ModelConfig) -> Backend:
    """Load the checkpoint's weights; raises EngineStartError naming what is wrong with them."""
    if config.device == "cuda":
        if find_spec("triton") is None:
            raise EngineStartError("device is 'cuda' and Triton is missing (pip install triton)")
        from engines.native.backends.cuda.loading import load_cuda

        return load_cuda(config, model)
    from engines.native.backends.cpu.backend import CpuBackend

    return CpuBackend.load(config, model)
