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
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.graphs.captured import Graphs
from engines.native.backends.cuda.graphs.staged import KeyedGraphs, StagedGraphs, StepGraphs
from engines.native.backends.cuda.memory.adapter_room import AdapterRoom
from engines.native.backends.cuda.ranks.exchange import LinkSide
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.steps.adapted import Adapted, StageAdapters
from engines.native.backends.cuda.steps.buffers import Rows, Scratch, SlotTensors
from engines.native.backends.cuda.steps.decode import DecodeStep
from engines.native.backends.cuda.steps.prefill import Prefill, PrefillBuffers
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.steps.verify import Guesses, VerifyStep
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Neighbouring layers of a model, or a rank's part of each, with their K/V blocks, all on one
    device."""

    config: ModelConfig  # of this part alone
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
    adapters: AdapterRoom | None = None  # None: steps compute the model as it is


class Stage:
    """What one part of the model reads and writes, and its launches for every size of step."""

    def __init__(
        self, part: ModelPart, block_size: int, most: MostWork, choices: CardChoices,
        exchange: LinkSide | None = None,
    ) -> None:  # fmt: skip
        """`exchange`: of a rank."""
        device, self._choices = part.cache.device, choices
        self.device, self._config = device, part.config
        self.shape = shape = Shape(part.config)
        self.slots = SlotTensors.allocate(
            most.slots, most.blocks, device, has_adapters=most.adapters is not None
        )
        self.rows = Rows(most.rows, device)
        self.guesses = Guesses(most.rows, device)
        self.scratch = Scratch(shape, most.rows, device)
        self.buffers = PrefillBuffers(shape, most.tokens, most.sequences, device, most.least_depth)
        self._args = (shape, part.weights, part.cache, block_size)
        self._is_packed = part.weights.layers[0].gate_up.is_packed
        self._exchange = exchange
        self.adapters: StageAdapters | None = None
        if most.adapters is not None:
            self.adapters = StageAdapters.allocate(
                part.config, most.adapters, most.rows, most.tokens, device
            )
        self.num_columns = len(part.weights.head)  # of the logits

    def decode(
        self, num: int, rows: Rows, logits: Tensor, *, is_adapted: bool = False
    ) -> DecodeStep:
        """The step of `num` rows; `logits`: scratch.x of a stage that makes none."""
        return DecodeStep(*self._decoding(num, rows, logits, is_adapted))

    def verify(
        self, num: int, rows: Rows, logits: Tensor, *, is_adapted: bool = False
    ) -> VerifyStep:
        return VerifyStep(*self._decoding(num, rows, logits, is_adapted), guesses=self.guesses)

    def prefill(self, num: int, *, is_adapted: bool = False) -> Prefill:
        choices, b, adapted = self._choices.prefill(num, self._config), self.buffers, None
        if is_adapted:
            adapted = self._adapted(num, b.slots, b.num_tokens)
        return Prefill(*self._args, num, self.slots, b, choices, self._exchange, adapted)

    def _decoding(self, num: int, rows: Rows, logits: Tensor, is_adapted: bool) -> tuple[Any, ...]:
        variants = self._choices.decode(num, self._config, self._is_packed)
        scratch, adapted = self.scratch, None
        if is_adapted:
            is_early = bool(variants.early)
            adapted = self._adapted(num, rows.slots, rows.num_rows, is_early=is_early)
        step = num, variants, self.slots, rows, scratch, logits
        return (*self._args, *step, self._exchange, adapted)

    def _adapted(
        self, num: int, slots: Tensor, num_rows: Tensor, *, is_early: bool = False
    ) -> Adapted:
        own, of_slots = self.adapters, self.slots.adapters
        assert own is not None
        assert of_slots is not None
        return Adapted(self.shape, own, of_slots, num, slots, num_rows, is_early=is_early)


class ModelSteps(Protocol):
    """A model on one device or several, as steps see it."""

    @property
    def first(self) -> Stage:
        """The one that reads the tokens."""
        ...

    @property
    def last(self) -> Stage:
        """The one that samples."""
        ...

    @property
    def every(self) -> Sequence[Stage]: ...

    def decode(self, sizes: list[int], sampler: Sampler) -> StepGraphs:
        """Steps whose logits `sampler` gets."""
        ...

    def verify(self, sizes: list[int], sampler: Sampler) -> StepGraphs: ...

    def prefill(self, sizes: list[int]) -> StepGraphs: ...

    def head(self, sizes: list[int], sampler: Sampler, states: Tensor) -> StepGraphs:
        """The output head over `states` (rows, hidden) bf16 of the last stage's device."""
        ...

    def open(self) -> None:
        """All graphs are captured."""
        ...


class Stages:
    """The stages of a model, in order; implements ModelSteps."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.first, self.last, self.every = stages[0], stages[-1], stages
        self._before_last = stages[:-1]
        for stage in self._before_last:
            self.last.rows.copies.append(stage.rows.packed)
            self.last.buffers.copies.append(stage.buffers.packed)
        if self._before_last:
            self.last.guesses.copies.append(self.first.guesses.packed)

    def decode(self, sizes: list[int], sampler: Sampler) -> StepGraphs:
        def launches(stage: Stage, num: int, is_adapted: bool) -> Callable[[], None]:
            return stage.decode(num, *self._ends(stage, sampler), is_adapted=is_adapted).run

        return self._keyed(sizes, launches, _rows_of)

    def verify(self, sizes: list[int], sampler: Sampler) -> StepGraphs:
        def launches(stage: Stage, num: int, is_adapted: bool) -> Callable[[], None]:
            return stage.verify(num, *self._ends(stage, sampler), is_adapted=is_adapted).run

        return self._keyed(sizes, launches, _rows_of)

    def prefill(self, sizes: list[int]) -> StepGraphs:
        def launches(stage: Stage, num: int, is_adapted: bool) -> Callable[[], None]:
            return stage.prefill(num, is_adapted=is_adapted).run

        return self._keyed(sizes, launches, _tokens_of)

    def head(self, sizes: list[int], sampler: Sampler, states: Tensor) -> StepGraphs:
        steps = {n: self.last.decode(n, sampler.rows, sampler.logits) for n in sizes}
        graphs = Graphs({n: partial(each.head, states) for n, each in steps.items()}, states.device)
        return StagedGraphs([graphs], [states])

    def open(self) -> None:
        """Stages wait for nothing."""

    def _ends(self, stage: Stage, sampler: Sampler) -> tuple[Rows, Tensor]:
        if stage is self.last:
            return sampler.rows, sampler.logits
        return stage.rows, stage.scratch.x

    def _keyed(
        self, sizes: list[int], launches: Callable[[Stage, int, bool], Callable[[], None]],
        residual: Callable[[Stage], Tensor],
    ) -> StepGraphs:  # fmt: skip
        """The same steps twice where there are adapters."""

        def made(is_adapted: bool) -> StagedGraphs:
            graphs = [
                Graphs({n: launches(stage, n, is_adapted) for n in sizes}, stage.device)
                for stage in self.every
            ]
            return StagedGraphs(graphs, [residual(each) for each in self.every])

        plain = made(is_adapted=False)
        return plain if self.last.adapters is None else KeyedGraphs(plain, made(is_adapted=True))


def _rows_of(stage: Stage) -> Tensor:
    return stage.scratch.x


def _tokens_of(stage: Stage) -> Tensor:
    return stage.buffers.x
