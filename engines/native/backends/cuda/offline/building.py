"""All kernels of a model for one architecture, compiled by some processes at once."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from engines.native.artefact.store import Store
from engines.native.backends.cuda.artefact import compiled_kernels
from engines.native.backends.cuda.artefact.parts import kernels_part
from engines.native.backends.cuda.card import KNOWN
from engines.native.backends.cuda.choices.hopper import H100
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.offline.compiling import (
    build_launchers,
    compiled,
    compiling_for,
    resources,
)
from engines.native.backends.cuda.offline.launches import fp8_launches_of, launches_of
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.config import ModelConfig

MODELS: Final = ("20b", "120b")
FIRST_WITH_FP8: Final = 89


def _model(name: str) -> ModelConfig:
    return gpt_oss(name) if name in MODELS else ModelConfig.from_dir(Path(name))


def compile_model(architecture: int, name: str, folder: Path, jobs: int) -> list[dict[str, Any]]:
    """Compile into a folder what a model needs on an architecture; what each kernel takes.

    `name`: one of MODELS, or the folder of another model's config.json. The processes are new ones,
    as Triton compiles for one architecture in each.
    """
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        shares = [
            pool.submit(_compile_share, architecture, name, folder, index, jobs)
            for index in range(jobs)
        ]
        return [used for share in shares for used in share.result()]


def _compile_share(
    architecture: int, name: str, folder: Path, index: int, jobs: int
) -> list[dict[str, Any]]:
    model = _model(name)
    with compiled_kernels.cache_at(folder), compiling_for(architecture):
        # Checkpoints of gpt-oss are packed; another model's, such as nano's, are not.
        all_choices = choices_of(architecture, model)
        launches = [
            launch
            for choices in all_choices
            for launch in launches_of(model, choices, is_packed=name in MODELS)
        ]
        if architecture >= FIRST_WITH_FP8:
            launches += fp8_launches_of(model, all_choices[0])  # of attention: any card's
        launches = launches[index::jobs]
        kernels = [compiled(launch) for launch in launches]
        build_launchers(kernels)
    pairs = zip(launches, kernels, strict=True)
    return [asdict(resources(launch, kernel)) for launch, kernel in pairs]


def choices_of(architecture: int, model: ModelConfig) -> list[CardChoices]:
    """Of the cards of an architecture, whose variants for a model may differ."""
    own = CardChoices(KNOWN[architecture])
    if architecture != 90 or H100.of_model(model).decode == own.table.of_model(model).decode:
        return [own]
    return [own, CardChoices(own.card, H100)]


def keep(architecture: int, name: str, folder: Path, store: Path) -> None:
    part = kernels_part(_model(name), divmod(architecture, 10))
    with Store(store).alone(part) as slot:
        slot.make(compiled_kernels.recipe(folder), is_anew=True)
