"""A start on a GPU, with what the one before it has left: artefact_parts.py says what that is."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engines.native.artefact.store import NotKept, Store
from engines.native.backends.cuda import compiled_kernels, packed_files
from engines.native.backends.cuda.artefact_parts import kernels_part, weights_part
from engines.native.backends.cuda.load import load_weights
from engines.native.backends.cuda.weights import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from engines.native.weights import Checkpoint

log = logging.getLogger(__name__)


class Artefact:
    """The parts that one start takes from the store; without a folder all is made anew."""

    def __init__(self, config: NativeConfig, model: ModelConfig) -> None:
        self._config, self._model = config, model
        self._store = None if config.artefact_dir is None else Store(config.artefact_dir)

    def weights(
        self, checkpoint: Checkpoint, num_positions: int, device: torch.device
    ) -> ModelWeights:
        """The weights from their part, which is made first where it is needed."""
        model, started_s = self._model, time.monotonic()
        if self._store is not None:
            part = weights_part(self._config)
            recipe = packed_files.recipe(checkpoint, model, device)
            try:
                weights = self._store.use(
                    part,
                    recipe,
                    lambda found: packed_files.read(found, model, num_positions, device),
                )
            except NotKept as reason:
                log.warning("The packed weights are not kept: %s", reason)
            else:
                _tell("The packed weights were loaded", started_s)
                return weights
        weights = load_weights(checkpoint, model, num_positions, device)
        _tell("The checkpoint was loaded and packed", started_s)
        return weights

    @contextmanager
    def kernels(self, capability: tuple[int, int]) -> Iterator[None]:
        """A block inside which compiled kernels come from their part, or go into it."""
        started_s = time.monotonic()
        if self._store is None:
            yield
        else:
            part = kernels_part(self._config, self._model, capability)
            with compiled_kernels.kept(self._store, part):
                yield
        _tell("The kernels were compiled or found, and the graphs captured", started_s)


def _tell(what: str, since_s: float) -> None:
    log.info("%s in %.1f s", what, time.monotonic() - since_s)
