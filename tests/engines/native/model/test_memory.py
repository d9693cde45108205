"""What is counted before a model is loaded is what the loaded model then holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engines.native.backends.cpu import layers, memory
from engines.native.config import ModelConfig

FEW = {"num_local_experts": 8, "num_experts_per_tok": 4}
MANY = {"num_local_experts": 12, "num_experts_per_tok": 4}


def held(found: object, seen: dict[object, int]) -> int:
    """Bytes of the tensors that an object leads to, each place in memory once."""
    if isinstance(found, torch.Tensor):
        place = id(found) if found.is_mkldnn else (found.data_ptr(), found.numel())
        seen[place] = found.numel() * found.dtype.itemsize
    elif isinstance(found, list | tuple):
        for each in found:
            held(each, seen)
    else:
        for each in getattr(found, "__dict__", {}).values():
            held(each, seen)
    return sum(seen.values())


@pytest.mark.parametrize("most_copied", [0, 20_000, 10**9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [FEW, MANY], ids=["few", "many"])
def test_the_estimate_is_what_loading_holds(
    make_folder: Any,
    monkeypatch: pytest.MonkeyPatch,
    shape: dict[str, int],
    dtype: str,
    most_copied: int,
) -> None:
    """On a CPU that multiplies float32 alone; matrices here have 2,048 to 32,768 values."""
    monkeypatch.setattr(layers, "has_bfloat16", lambda: False)
    monkeypatch.setattr(layers, "_PLAIN_ROWS", ((most_copied, 1),))
    monkeypatch.setattr(layers, "_MAX_COPIED", most_copied)
    checkpoint = make_folder(**shape)
    loaded = checkpoint.load(dtype=dtype)._model
    loaded.embedding = None  # it stays in its file
    expected = memory.held_bytes(ModelConfig.from_dir(checkpoint.path), getattr(torch, dtype))
    assert held(loaded, {}) == pytest.approx(expected, rel=0.02)
