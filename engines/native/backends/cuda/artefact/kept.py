"""A start on a GPU, with what the start before it has left (parts.py)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, cached_property
from typing import Any, Final

import torch

from engines import start_steps
from engines.errors import EngineStartError
from engines.native.artefact.identity import PACKED, replaced_shards
from engines.native.artefact.json_part import use_json
from engines.native.artefact.store import Damaged, NotKept, PartPlace, Store, StoredPart
from engines.native.backends.cuda.artefact import compiled_kernels
from engines.native.backends.cuda.artefact.ahead import compile_ahead, compile_in_processes
from engines.native.backends.cuda.artefact.parts import (
    PREBUILT,
    choices_part,
    costs_part,
    kernels_of,
    weights_part,
)
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.choices import stored
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.kernels.keys import fix_keys
from engines.native.backends.cuda.weights import packed_files
from engines.native.backends.cuda.weights.load import load_weights
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from engines.native.loop.limits import SchedulerLimits
from engines.native.step_costs import StepCosts
from engines.native.tensor_parallel.shard import Shard, part_of
from engines.native.tensor_parallel.weights import PartTensors
from engines.native.weights import CheckpointTensors, tensor_specs

_CHOICES: Final = "choices.json"
_COSTS: Final = "costs.json"
_AN_EXPERT: Final = "model.layers.0.mlp.experts.gate_up_proj"

Share = tuple[range, torch.device]
"""Layers, and the device that they go to."""

log = logging.getLogger(__name__)


class Artefact:
    """The parts that one start takes from the store; without a folder everything is built again."""

    def __init__(
        self, config: NativeConfig, model: ModelConfig, shard: Shard | None = None
    ) -> None:
        """`shard`: of a rank, whose part of the weights this is then about."""
        self._config, self._whole, self._shard = config, model, shard
        self._model = model if shard is None else part_of(model, shard)
        self._store = None if config.artefact_dir is None else Store(config.artefact_dir)

    @cached_property
    def _checkpoint(self) -> CheckpointTensors | None:
        """None if packed weights have replaced its shards."""
        folder = self._config.model_dir
        if replaced_shards(folder) and not any(folder.glob("*.safetensors")):
            return None
        if self._shard is not None:
            return PartTensors(self._config, self._whole, self._shard)
        return CheckpointTensors(folder, tensor_specs(self._model), self._config.quantize)

    def weights_bytes(self, split: Sequence[range]) -> list[int]:
        """Bytes of the weights of each of these layers on a GPU."""
        model, checkpoint = self._model, self._checkpoint
        if checkpoint is not None:
            return [packed_files.num_bytes(checkpoint, model, layers) for layers in split]
        with self._packed_alone() as place:
            return [packed_files.stored_bytes(place.folder, model, each) for each in split]

    def weights(self, num_positions: int, split: Sequence[Share]) -> list[ModelWeights]:
        """The weights from their part, if it is there or to be made; else from the checkpoint.

        EngineStartError where there is no checkpoint and the part cannot be used.
        """
        model, config, started_s = self._model, self._config, time.monotonic()
        start_steps.begin("loading weights")

        def read(found: StoredPart) -> list[ModelWeights]:
            return [
                packed_files.read(found, model, num_positions, device, layers)
                for layers, device in split
            ]

        if self._checkpoint is None:
            with self._packed_alone() as place:
                try:
                    weights = read(place.found())
                except Damaged as damage:
                    raise EngineStartError(self._remedy(f"are damaged: {damage}")) from damage
            _log_elapsed("The packed weights were loaded", started_s)
            return weights
        if self._store is not None:
            part = weights_part(config, self._shard)
            # Rounding reads all of the files and takes minutes: it is done once.
            is_kept = config.keep_weights or config.quantize is not None
            if is_kept or self._store.slot(part).why_not() is None:
                recipe = packed_files.recipe(self._checkpoint, model, split[0][1])
                try:
                    weights = self._store.use(part, recipe, read)
                except NotKept as reason:
                    log.warning("The packed weights cannot be saved: %s", reason)
                else:
                    _log_elapsed("The packed weights were loaded", started_s)
                    return weights
        weights = [
            load_weights(self._checkpoint, model, num_positions, device, layers)
            for layers, device in split
        ]
        _log_elapsed("The checkpoint was loaded and packed", started_s)
        return weights

    @contextmanager
    def _packed_alone(self) -> Iterator[PartPlace]:
        """A block in which the part of a checkpoint without shards does not change."""
        if self._store is None:
            raise EngineStartError(self._remedy("are not there"))
        with self._store.shared(weights_part(self._config, self._shard)) as place:
            reason = place.why_not()
            if reason is not None:
                raise EngineStartError(self._remedy(f"cannot be used: {place.folder} {reason}"))
            yield place

    def _remedy(self, state: str) -> str:
        return (
            f"the packed weights of {self._config.model_dir} {state}; its checkpoint was deleted by"
            f" `build-engine --packed-only`: delete {self._config.model_dir / PACKED} and get the"
            " checkpoint again with `harmonium download-to-cache`"
        )

    def choices(self, card: Card, tune: Callable[[CardChoices], CardChoices]) -> CardChoices:
        """The kernel variants that were measured on this card, else its architecture's.

        With the option `tune` they are measured first where they are not there.
        """
        choices = CardChoices(card)
        if self._store is not None:
            part = choices_part(card, self._model, self._config)
            if self._config.tune or self._store.slot(part).why_not() is None:

                def make() -> dict[str, Any]:
                    return stored.to_json(tune(choices).table)

                def parse(values: dict[str, Any]) -> CardChoices:
                    table = choices.table.of_model(self._model)
                    return CardChoices(card, stored.of_json(values, table, card.name))

                try:
                    return use_json(self._store, part, _CHOICES, make, parse)
                except NotKept as reason:
                    log.warning("The measured kernel choices cannot be saved: %s", reason)
        choices.tell()
        return choices

    def step_costs(
        self, card: Card, limits: SchedulerLimits, measure: Callable[[], StepCosts]
    ) -> StepCosts:
        """What an earlier start measured steps to take, else what they take now."""
        if self._store is None:
            return measure()
        part, measured = costs_part(self._config, self._model, card, limits), cache(measure)
        try:
            costs = use_json(
                self._store, part, _COSTS, lambda: measured().as_dict(), StepCosts.from_dict
            )
        except NotKept as reason:
            log.info("The measured step times cannot be saved: %s", reason)
            return measured()
        if not measured.cache_info().currsize:
            log.info("Step times: those that an earlier start measured")
        return costs

    def kernels_ahead(self, card: Card, max_drafts: int) -> Callable[[], None]:
        """Begin to compile kernels, if they are not kept; returns what waits for them.

        `max_drafts`: of a sequence and step.
        """
        config, model, checkpoint = self._config, self._model, self._checkpoint
        wanted = {
            "card": asdict(card),
            "model_dir": str(config.model_dir.absolute()),
            "is_packed": checkpoint is None or checkpoint.is_packed(_AN_EXPERT),
            "kv_dtype": config.kv_dtype,
            "sizes": {
                "max_rows": config.max_num_seqs,
                "max_tokens": config.max_num_batched_tokens,
                "max_drafts": max_drafts,
                "block_size": config.block_size,
                "is_batch_invariant": config.batch_invariant,
                "tensor_parallel": config.tensor_parallel,
                "max_adapters": config.max_adapters,
                "max_adapter_rank": config.max_adapter_rank,
            },
        }
        threading.Thread(target=fix_keys, name="kernel-keys", daemon=True).start()
        part = kernels_of(config, model, card.capability)
        num_cores = len(os.sched_getaffinity(0))
        return compile_ahead(
            self._store, part, Store(PREBUILT), num_cores, compile_in_processes(wanted)
        )

    @contextmanager
    def kernels(self, capability: tuple[int, int]) -> Iterator[None]:
        """A block inside which compiled kernels come from their part, or go into it."""
        started_s = time.monotonic()
        part = kernels_of(self._config, self._model, capability)
        start_steps.begin("capturing CUDA graphs")
        with compiled_kernels.kept(self._store, part, Store(PREBUILT)):
            yield
        _log_elapsed("The kernels were found or compiled, and the graphs captured", started_s)


def _log_elapsed(what: str, since_s: float) -> None:
    log.info("%s in %.1f s", what, time.monotonic() - since_s)
