"""A model in stages: some layers on each of several GPUs, which every step passes in turn.

A stage has K/V of its own layers and tables of all sequences; blocks have the same numbers in each.
The residual stream goes from one stage to the next, and sampled tokens go back to the first, by
copies between the devices. The devices' streams order all of it, so the host waits for nothing;
and of a long prompt, whose chunks bring no token, one stage computes a chunk while the next stage
computes the chunk before it. With one GPU there is one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.graphs.captured import Graphs
from engines.native.backends.cuda.graphs.staged import StagedGraphs
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.steps.buffers import Rows, Scratch, SlotTensors
from engines.native.backends.cuda.steps.decode import DecodeStep
from engines.native.backends.cuda.steps.prefill import Prefill, PrefillBuffers
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.steps.verify import Guesses, VerifyStep
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Neighbouring layers of a model with their K/V blocks, all on one device."""

    config: ModelConfig  # of these layers alone
    weights: ModelWeights
    cache: Tensor  # (layers of a kind, blocks, values of a block)


@dataclass(frozen=True, slots=True)
class MostWork:
    """How much a step computes at most, and of how many sequences."""

    slots: int
    blocks: int  # of a sequence
    rows: int
    tokens: int  # of a chunk
    sequences: int  # in a chunk
    least_depth: float  # as PrefillBuffers has it


class Stage:
    """What one part of the model reads and writes, and its launches for every size of step."""

    def __init__(
        self, part: ModelPart, block_size: int, most: MostWork, choices: CardChoices
    ) -> None:
        device, self._choices = part.cache.device, choices
        self.device, self._config = device, part.config
        self.shape = shape = Shape(part.config)
        self.slots = SlotTensors.allocate(most.slots, most.blocks, device)
        self.rows = Rows(most.rows, device)
        self.guesses = Guesses(most.rows, device)
        self.scratch = Scratch(shape, most.rows, device)
        self.buffers = PrefillBuffers(shape, most.tokens, most.sequences, device, most.least_depth)
        self._args = (shape, part.weights, part.cache, block_size)
        self._is_packed = part.weights.layers[0].gate_up.is_packed

    def decode(self, num: int, sampler: Sampler | None) -> DecodeStep:
        """The step of `num` rows; without a sampler they are the stage's, and have no logits."""
        return DecodeStep(*self._decoding(num, sampler))

    def verify(self, num: int, sampler: Sampler | None) -> VerifyStep:
        return VerifyStep(*self._decoding(num, sampler), guesses=self.guesses)

    def prefill(self, num: int) -> Prefill:
        choices = self._choices.prefill(num, self._config)
        return Prefill(*self._args, num, self.slots, self.buffers, choices)

    def _decoding(self, num: int, sampler: Sampler | None) -> tuple[Any, ...]:
        rows, logits = (
            (self.rows, self.scratch.x) if sampler is None else (sampler.rows, sampler.logits)
        )
        variants = self._choices.decode(num, self._config, self._is_packed)
        return (*self._args, num, variants, self.slots, rows, self.scratch, logits)


Launches = dict[int, Callable[[], None]]
"""What a stage launches in a step, by the step's size."""


class Stages:
    """The stages of a model, in order."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.first, self.last = stages[0], stages[-1]
        self.slots = [stage.slots for stage in stages]
        self._before_last = stages[:-1]
        for stage in self._before_last:
            self.last.rows.copies.append(stage.rows.packed)
            self.last.buffers.copies.append(stage.buffers.packed)
        if self._before_last:
            self.last.guesses.copies.append(self.first.guesses.packed)

    def decode(self, of_last: Launches) -> StagedGraphs:
        return self._graphs(of_last, lambda stage, n: stage.decode(n, None).run, _rows_of)

    def verify(self, of_last: Launches) -> StagedGraphs:
        return self._graphs(of_last, lambda stage, n: stage.verify(n, None).run, _rows_of)

    def prefill(self, of_last: Launches) -> StagedGraphs:
        return self._graphs(of_last, lambda stage, n: stage.prefill(n).run, _tokens_of)

    def _graphs(
        self, of_last: Launches, launch: Callable[[Stage, int], Callable[[], None]],
        residual: Callable[[Stage], Tensor],
    ) -> StagedGraphs:  # fmt: skip
        graphs = [
            Graphs({n: launch(stage, n) for n in of_last}, stage.device)
            for stage in self._before_last
        ]
        graphs.append(Graphs(of_last, self.last.device))
        return StagedGraphs(graphs, [residual(each) for each in (*self._before_last, self.last)])


def _rows_of(stage: Stage) -> Tensor:
    return stage.scratch.x


def _tokens_of(stage: Stage) -> Tensor:
    return stage.buffers.x
