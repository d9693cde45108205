"""The pre-built engine: what a start on a GPU leaves to the next, and what that depends on.

Two parts. The weights in the kernels' layout belong to a checkpoint: every profile and GPU of one
layout shares them. The compiled kernels belong to a model's shape, a profile's sizes of step and a
GPU's architecture. CUDA graphs themselves cannot be kept: they are captured at every start.

Triton is not needed to know them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines.native.artefact.identity import (
    checkpoint_facts,
    short_digest,
    sources_digest,
    versions,
)
from engines.native.artefact.store import Part, Store
from engines.native.backends.cuda.fragment_order import LAYOUT
from engines.native.backends.cuda.graphs import step_sizes
from engines.native.config import ModelConfig, NativeConfig
from engines.native.eagle.config import EagleConfig


def weights_part(config: NativeConfig) -> Part:
    """The part of a checkpoint's packed weights; a changed checkpoint replaces its own."""
    identity = {"layout": LAYOUT, **checkpoint_facts(config.model_dir)}
    return Part(f"weights-{short_digest(str(config.model_dir.resolve()))}", identity)


def kernels_part(config: NativeConfig, model: ModelConfig, capability: tuple[int, int]) -> Part:
    """The part of compiled kernels; another version of torch, Triton or ours replaces it."""
    architecture = "{}{}".format(*capability)
    sizes = step_sizes(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        has_drafts=config.speculation != "none",
        is_invariant=config.batch_invariant,
    )
    runs: dict[str, Any] = {
        "architecture": f"sm_{architecture}",
        "model": asdict(model),
        "graphs": asdict(sizes),
        "block_size": config.block_size,
        "max_model_len": config.max_model_len,
    }
    if config.draft_dir is not None:
        runs["head"] = asdict(EagleConfig.from_dir(config.draft_dir, model))
    sources = sources_digest(Path(__file__).parent)
    identity = {**versions("torch", "triton"), "sources": sources, **runs}
    return Part(f"kernels-sm{architecture}-{short_digest(runs)}", identity)


def states(
    config: NativeConfig, model: ModelConfig, capability: tuple[int, int]
) -> dict[str, str | None]:
    """Each part's folder with why it cannot be used as it is; None if it can."""
    assert config.artefact_dir is not None
    store = Store(config.artefact_dir)
    parts = weights_part(config), kernels_part(config, model, capability)
    return {str(store.slot(part).folder): store.slot(part).why_not() for part in parts}
