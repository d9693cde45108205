"""The pre-built engine: what a start on a GPU leaves to the next, and what that depends on.

Two parts. The weights in the kernels' layout belong to a checkpoint: every profile and GPU of one
layout shares them. The compiled kernels belong to a model's shape and a GPU's architecture: every
profile shares them. A wheel or image may bring kernels along, in a store that is only read. CUDA
graphs themselves cannot be kept: they are captured at every start.

Triton is not needed to know them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from engines.native.artefact.identity import (
    checkpoint_facts,
    short_digest,
    sources_digest,
    versions,
)
from engines.native.artefact.store import Part, Store
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.weights.fragment_order import LAYOUT
from engines.native.calibration import longest_chunk
from engines.native.config import ModelConfig, NativeConfig
from engines.native.loop.limits import SchedulerLimits
from engines.native.mxfp4 import ROUNDING
from engines.native.tensor_parallel.shard import Shard

_BACKEND: Final = Path(__file__).parents[1]
_ENGINE: Final = _BACKEND.parents[1]

PREBUILT: Final = _BACKEND / "prebuilt"
"""The store that a wheel or image brings; offline/__main__.py fills it."""


def weights_part(config: NativeConfig, shard: Shard | None = None) -> Part:
    """The part of a checkpoint's packed weights; a changed checkpoint replaces its own.

    Rounded weights have a part beside that of the same files as they are, and so has each rank.
    """
    identity = {"layout": LAYOUT, **checkpoint_facts(config.model_dir), **_rounding(config)}
    place = str(config.model_dir.resolve())
    rounded = f"-{config.quantize}" if config.quantize is not None else ""
    if shard is not None:
        identity |= {"ranks": shard.size, "rank": shard.rank}
        rounded += f"-tp{shard.size}-{shard.rank}"
    return Part(f"weights-{short_digest(place)}{rounded}", identity)


def _rounding(config: NativeConfig) -> dict[str, Any]:
    """What a part depends on if the experts are rounded; nothing more if they are not."""
    return {} if config.quantize is None else {"quantize": config.quantize, "rounding": ROUNDING}


def kernels_part(
    model: ModelConfig,
    capability: tuple[int, int],
    block_size: int = 64,
) -> Part:
    """The part of a model's compiled kernels on an architecture, whatever profile it runs by.

    Another version of Triton or of our sources replaces it.
    """
    architecture = "{}{}".format(*capability)
    shape = asdict(model)
    del shape["rope"]  # the kernels get its angles
    runs: dict[str, Any] = {
        "architecture": f"sm_{architecture}",
        "model": shape,
        "block_size": block_size,
    }
    sources = sources_digest(_BACKEND)
    identity = {**versions("triton"), "sources": sources, **runs}
    return Part(f"kernels-sm{architecture}-{short_digest(runs)}", identity)


def choices_part(card: Card, model: ModelConfig, config: NativeConfig) -> Part:
    """The part of kernel variants that were measured on a card for a model."""
    runs = {"card": asdict(card), "model": asdict(model), **_rounding(config)}
    sources = sources_digest(_BACKEND)
    identity = {**versions("triton"), "sources": sources, **runs}
    return Part(f"choices-sm{card.architecture}-{short_digest(runs)}", identity)


def costs_part(
    config: NativeConfig, model: ModelConfig, card: Card, limits: SchedulerLimits
) -> Part:
    """The part of step times that were measured with these options on a card.

    They belong to the whole engine's sources, and to the kernel variants that were kept when they
    were measured.
    """
    assert config.artefact_dir is not None
    runs = {
        "card": asdict(card),
        "num_gpus": config.num_gpus,  # the layers' split follows from it
        "tensor_parallel": config.tensor_parallel,
        "model": asdict(model),
        "max_num_seqs": limits.max_num_seqs,
        "longest_chunk": longest_chunk(limits),
        "block_size": config.block_size,
        "kv_dtype": config.kv_dtype,
        "batch_invariant": config.batch_invariant,
        "speculation": config.speculation,
        **_rounding(config),
    }
    choices = Store(config.artefact_dir).slot(choices_part(card, model, config))
    is_tuned = choices.why_not() is None
    identity = {
        **versions("torch", "triton"),
        "sources": sources_digest(_ENGINE),
        "choices": choices.found().checksums if is_tuned else None,
        **runs,
    }
    return Part(f"costs-sm{card.architecture}-{short_digest(runs)}", identity)


def kernels_of(config: NativeConfig, model: ModelConfig, capability: tuple[int, int]) -> Part:
    """The part of compiled kernels that an engine of these options takes and adds to."""
    return kernels_part(model, capability, config.block_size)


def states(
    config: NativeConfig, model: ModelConfig, capability: tuple[int, int]
) -> dict[str, str | None]:
    """Each part's folder with why it cannot be used as it is; None if it can."""
    assert config.artefact_dir is not None
    own, kernels = Store(config.artefact_dir), kernels_of(config, model, capability)
    places = [own.slot(weights_part(config)), own.slot(kernels)]
    prebuilt = Store(PREBUILT).slot(kernels)
    if prebuilt.why_not() is None:
        places[1] = prebuilt
    return {str(place.folder): place.why_not() for place in places}
