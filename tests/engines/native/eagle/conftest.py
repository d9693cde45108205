"""A tiny target whose layers can be looked at, and heads for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.engines.native.eagle.reference import head_config, head_tensors, write_head
from tests.engines.native.small_model import small_config, write_small

TARGET = small_config(vocab_size=60)


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Folders:
    """A target's checkpoint, and places for heads."""

    model: Path
    heads: Path

    @property
    def embedding(self) -> torch.Tensor:
        return load_file(self.model / "model.safetensors")["model.embed_tokens.weight"]

    def head(self, name: str = "head", seed: int = 5, **changes: Any) -> Path:
        """A random head's folder."""
        config = head_config(TARGET, **changes)
        return write_head(self.heads / name, config, head_tensors(config, seed))


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("eagle")
    return Folders(write_small(root / "model", TARGET), root)
