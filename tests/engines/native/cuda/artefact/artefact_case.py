"""A small checkpoint with a store for its artefact, and what is in that store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from engines.native.artefact.store import Part
from engines.native.config import NativeConfig
from tests.engines.native.cuda.kernels.kernel_fixtures import model_config
from tools.benchmarks.published import write_published

MODEL: Final = replace(
    model_config(),
    hidden_size=64,
    intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    num_local_experts=3,
    num_experts_per_tok=2,
    vocab_size=64,
)
HOPPER: Final = (9, 0)


def config_in(folder: Path) -> NativeConfig:
    """A checkpoint in the published format, and a place for its artefact."""
    write_published(folder / "model", MODEL, torch.device("cpu"))
    return NativeConfig(
        folder / "model",
        device="cuda",
        dtype="bfloat16",
        artefact_dir=folder / "store",
        keep_weights=True,
    )


def folder_of(config: NativeConfig, part: Part) -> Path:
    """Where the store keeps a part of the artefact."""
    assert config.artefact_dir is not None
    return config.artefact_dir / part.name


def damage(path: Path) -> bytes:
    """Flip one bit of a file's content; the new content."""
    content = bytearray(path.read_bytes())
    content[-100] ^= 4
    path.write_bytes(content)
    return bytes(content)


def files_of(config: NativeConfig) -> dict[str, tuple[int, int]]:
    """Every file of the store but its locks, with its size and inode."""
    assert config.artefact_dir is not None
    every = config.artefact_dir.rglob("*")
    paths = [path for path in every if path.is_file() and path.suffix != ".lock"]
    return {str(path): (path.stat().st_size, path.stat().st_ino) for path in paths}
