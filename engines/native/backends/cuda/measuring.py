"""Kernel variants measured on the card that is there: `harmonium build-engine --tune`."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from triton.errors import TritonError

from engines.native.backends.cuda.artefact.compiled_kernels import cache_at
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.choices.tuning import tuned
from engines.native.backends.cuda.choices.variants import PARTS, Choices
from engines.native.backends.cuda.kernels.launch import KernelLaunch, instead
from engines.native.backends.cuda.steps.buffers import Rows, Scratch, SlotTensors
from engines.native.backends.cuda.steps.decode import DecodeStep
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.weights.model import ModelWeights

_CONTEXT: Final = 512  # tokens of each sequence that is attended to
_REPEATS: Final = 9
_COMPILERS: Final = min(len(os.sched_getaffinity(0)), 16)
# A row agrees if its logits differ by at most this share of their norm: sums are made in another
# order. Where two experts are nearly as likely, that may choose the other: some rows may differ.
_TOLERANCE: Final = 0.02
_AGREEING: Final = 0.75  # of all rows
_DRAWS: Final = 4  # sets of tokens
_COMPARED: Final = 2  # layers, of both kinds of attention: rounding grows by the layer

log = logging.getLogger(__name__)


class MeasuredSteps:
    """Decode steps of a loaded model whose parts are timed with any variants."""

    def __init__(self, shape: Shape, weights: ModelWeights, block_size: int) -> None:
        self._shape, self._weights, self._block_size = shape, weights, block_size
        self._device = weights.embedding.device
        self._rows = 0
        self.kernels: set[Any] = set()  # that were compiled

    def _hold(self, rows: int) -> None:
        if rows == self._rows:
            return
        self._rows, device, config = rows, self._device, self._shape.config
        each = _CONTEXT // self._block_size + 1
        self._slots = SlotTensors.allocate(rows, each, device)
        table = torch.arange(1, rows * each + 1, device=device, dtype=torch.int32).view(rows, each)
        self._slots.full_tables.copy_(table)
        self._slots.window_tables.copy_(table)
        layers = max(config.layer_types.count(kind) for kind in config.layer_types)
        values = self._block_size * 2 * config.kv_size
        self._cache = torch.randn(
            (layers, rows * each + 1, values), dtype=torch.bfloat16, device=device
        )
        self._in = Rows(rows, device)
        self._in.slots.copy_(torch.arange(rows))
        self._in.num_rows.fill_(rows)
        self._in.positions.fill_(_CONTEXT)
        self._slots.token_ids.copy_(torch.arange(rows) * 97 % config.vocab_size)
        self._scratch = Scratch(self._shape, rows, device)
        self._logits = torch.zeros(rows, config.vocab_size, device=device)

    def _step(self, rows: int, choices: Choices, num_layers: int | None = None) -> DecodeStep:
        """A step of the model, or of its first layers and the output head."""
        self._hold(rows)
        weights = replace(self._weights, layers=self._weights.layers[:num_layers])
        return DecodeStep(
            self._shape, weights, self._cache, self._block_size, rows, choices, self._slots,
            self._in, self._scratch, self._logits,
        )  # fmt: skip

    def prepare(self, rows: int, choices: list[Choices], parts: frozenset[str]) -> None:
        """Compile these parts with each of the choices, several at once; failures are repeated
        later."""
        launches: list[KernelLaunch] = []
        with instead(launches.append):
            for each in choices:
                step = self._step(rows, each)
                step.skipped = PARTS - parts - {"norm"}
                step.run()
        self.kernels |= {launch.kernel for launch in launches}
        with ThreadPoolExecutor(_COMPILERS, thread_name_prefix="compile") as threads:
            [*threads.map(_compile, launches)]

    def time(self, rows: int, choices: Choices, parts: frozenset[str]) -> float | None:
        """Median milliseconds of the parts in all layers; None if they do not run here."""
        step = self._step(rows, choices)
        try:
            step.run()  # what the parts read
            step.skipped = PARTS - parts - {"norm"}
            step.run()
            torch.cuda.synchronize(self._device)
        except (TritonError, RuntimeError) as error:
            log.debug("%s: %s", choices, error)
            return None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step.run()
        times: list[float] = []
        for _ in range(_REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize(self._device)
            times.append(start.elapsed_time(end))
        return sorted(times)[_REPEATS // 2]

    def agree(self, rows: int, choices: Choices, others: Choices) -> bool:
        """Whether a step gives the same logits with both, but for rounding."""
        steps = [self._step(rows, each, _COMPARED) for each in (choices, others)]
        num = 0
        for draw in range(_DRAWS):
            ids = torch.arange(rows) * 97 + draw * 7919
            self._slots.token_ids.copy_(ids % self._shape.config.vocab_size)
            one, other = (self._logits_of(step) for step in steps)
            num += int(((one - other).norm(dim=1) <= _TOLERANCE * other.norm(dim=1)).sum())
        return num >= _AGREEING * _DRAWS * rows

    def _logits_of(self, step: DecodeStep) -> Tensor:
        step.run()
        return self._logits.double()


def _compile(launch: KernelLaunch) -> None:
    with suppress(TritonError, RuntimeError):
        launch.kernel.warmup(*launch.args, grid=launch.grid, **launch.options)


@torch.inference_mode()
def measured(
    choices: CardChoices, shape: Shape, weights: ModelWeights, block_size: int, most_rows: int
) -> CardChoices:
    """The card's choices with the variants that are fastest on it, for steps up to `most_rows`."""
    steps = MeasuredSteps(shape, weights, block_size)
    gc.collect()
    gc.disable()  # another engine's graphs, collected meanwhile, would spoil one that is captured
    try:
        with (
            tempfile.TemporaryDirectory(prefix="harmonium-tune-") as folder,
            cache_at(Path(folder)),
        ):
            table = choices.table.of_model(shape.config)
            table = tuned(table, choices.card.name, most_rows, steps)
    finally:
        gc.enable()
    for kernel in steps.kernels:
        kernel.device_caches.clear()  # the winners are compiled again, where they are kept
    return CardChoices(choices.card, table)
