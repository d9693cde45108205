"""Where the kernels run in these tests: a GPU, or Triton's interpreter on CPU tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engines.native.config import ModelConfig

IS_GPU = torch.cuda.is_available()

pytest.importorskip("triton", reason="Triton has no build for this platform")
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from engines.native.backends.cuda.offline.published import gpt_oss  # noqa: E402

ON_GPU_ONLY = pytest.mark.skipif(
    not IS_GPU, reason="too slow through Triton's interpreter; make test-gpu runs it"
)
DEVICE = torch.device("cuda" if IS_GPU else "cpu")


def _patch_the_language_once() -> None:
    """The interpreter patches triton.language anew at every call of a helper, 2 ms each."""
    patch: Any = interpreter._patch_lang
    patched = set()

    def patch_once(function: Any) -> Any:
        modules = frozenset(
            name for name, value in function.__globals__.items() if value in (tl, tl.core)
        )
        if modules not in patched:
            patched.add(modules)
            patch(function)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


if not IS_GPU:
    _patch_the_language_once()


def random(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||; NaN is an error of infinity."""
    difference = (found.double() - expected.double()).norm() / expected.double().norm()
    return float(difference.nan_to_num(float("inf")))


def random_mxfp4(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Published blocks and scales of random weights (..., rows, inputs) of about unit gain."""
    *rows, inputs = shape
    blocks = torch.randint(0, 256, (*rows, inputs // 32, 16), dtype=torch.uint8, device=DEVICE)
    scales = torch.randint(119, 124, (*rows, inputs // 32), dtype=torch.uint8, device=DEVICE)
    return blocks, scales


def model_config(num_layers: int = 2) -> ModelConfig:
    """gpt-oss-20b's shape with fewer layers; on CPU a small relative of it."""
    config = gpt_oss("20b", num_layers)
    if IS_GPU:
        return config
    return replace(
        config,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        vocab_size=64,
    )
