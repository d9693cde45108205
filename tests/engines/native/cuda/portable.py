"""The path of cards before Hopper, on whatever card is there: `make test-gpu-portable`.

A plugin for pytest. Kernels are compiled for compute capability 8.9 up to their PTX, which ptxas
then turns into code for the card: no programmatic dependent launch, no wgmma, and Ada's choices in
99 KB of shared memory.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Any, Final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

from engines.native.backends.cuda.card import KNOWN, Card

ADA: Final = KNOWN[89]


def use_portable_path() -> None:
    """From here on kernels are chosen and compiled for Ada in this process."""
    real = torch.cuda.get_device_capability()
    card = Card.of(torch.device("cuda"))
    as_ada = Card("portable", ADA.capability, card.num_sms, ADA.shared_bytes)
    Card.of = classmethod(lambda _, __: as_ada)  # type: ignore[method-assign, assignment]
    target = GPUTarget("cuda", ADA.architecture, 32)
    driver.active.get_current_target = lambda: target
    make_cubin = CUDABackend.make_cubin

    def checked(self: Any, src: Any, metadata: Any, opt: Any, _: int) -> Any:
        assert "griddepcontrol" not in src
        assert "wgmma" not in src
        assert metadata["shared"] <= ADA.shared_bytes, metadata["shared"]
        return make_cubin(self, src, metadata, opt, 10 * real[0] + real[1])

    CUDABackend.make_cubin = checked


def pytest_configure() -> None:
    """Called by pytest, which is started with `-p tests.engines.native.cuda.portable`."""
    if "TRITON_CACHE_DIR" not in os.environ:  # what is compiled here runs on this card alone
        folder = tempfile.mkdtemp(prefix="harmonium-portable-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        triton.knobs.cache.dir = folder
    use_portable_path()
