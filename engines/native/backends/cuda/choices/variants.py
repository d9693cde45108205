"""The variants of the kernels: what a choice consists of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from engines.native.config import ModelConfig


class Tiles(NamedTuple):
    """The variant of a product of bf16 weights with rows."""

    bn: int
    bk: int
    splits: int
    stages: int
    is_swapped: bool = True
    num_warps: int = 4
    bm: int = 256  # rows of a tile, at most


class StreamLaunch(NamedTuple):
    """The variant of a product of streamed MXFP4 weights: kernels/experts.py.

    A warp needs a whole row of the tensors that the assembly works on, so step * side >= num_warps.
    """

    num_warps: int
    step: int
    groups: int
    stages: int = 0  # in shared memory; 0: one ahead, in registers
    side: int = 1
    registers: int = 0  # of a thread, at most; 0: as the compiler likes

    def fitting(self, num_groups: int) -> StreamLaunch:
        """The same, of fewer groups a program if these do not share out `num_groups`."""
        choice = self
        while num_groups % (choice.groups * choice.side):
            if choice.groups > 1:
                choice = choice._replace(groups=choice.groups // 2)
            else:
                side = choice.side // 2
                choice = choice._replace(side=side, num_warps=choice.step * side)
        return choice


class Grouped(NamedTuple):
    """The variant of a product of experts' tiles on tensor cores: kernels/experts_grouped.py."""

    bm: int
    groups: int
    num_warps: int
    stages: int = 3
    tiles: int = 3  # of the inputs in a step
    tail: int = 0  # rows up to which an expert's last tile is a smaller one

    @property
    def options(self) -> dict[str, int]:
        """As the kernels have them."""
        sizes = {"BM": self.bm, "TAIL": self.tail, "GROUPS": self.groups, "TILES": self.tiles}
        return {**sizes, "STAGES": self.stages, "num_warps": self.num_warps}


PARTS = frozenset({"norm", "qkv", "attention", "out", "router", "gate_up", "down", "head"})
"""Of a step; the embedding is none of them."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The kernel variants of one batch bucket."""

    qkv: Tiles
    out: Tiles
    head: Tiles
    gate_up: StreamLaunch | Grouped
    down: StreamLaunch | Grouped
    splits: int = 8  # of a long context, at most
    min_split: int = 256
    context_tile: int = 128
    attention_warps: int = 8
    attention_stages: int = 2
    router_each: int = 1
    router_stages: int = 4  # of the router of many rows
    early: frozenset[str] = frozenset()  # parts that begin before the part before has ended
    prefetch: int = 0  # steps of a product's weights that it asks for before its input is there


class PrefillAttention(NamedTuple):
    """The variant of a chunk's attention: kernels/prefill_attention.py."""

    tile: int = 64  # keys of a step
    stages: int = 3
    num_warps: int = 4


class RowAttention(NamedTuple):
    """The variant of kernels/row_attention.py: a decode step's attention beside a chunk."""

    tile: int = 64  # keys of a step
    stages: int = 3
    num_warps: int = 2
    programs: int = 12  # of a multiprocessor


class LongAttention(NamedTuple):
    """The variant of kernels/hopper_attention.py, for layers that see all keys, in deep chunks."""

    tile: int = 128  # keys of a step
    stages: int = 4
    least_depth: int = 1024  # mean position of a chunk's tokens from which on it is faster


class PrefillChoices(NamedTuple):
    """The kernel variants of one size of chunk."""

    gate_up: Grouped
    down: Grouped
    attention: PrefillAttention = PrefillAttention()
    rows: RowAttention = RowAttention()
    long_attention: LongAttention | None = None
    router_stages: int = 4


_DENSITY: Final = 4 / 32  # of gpt-oss-20b


@dataclass(frozen=True, slots=True)
class Table:
    """The kernel variants of one architecture, as data.

    `decode`: by the rows that a bucket holds at most; `prefill`: by the tokens that an expert has
    at least, on the average; `density`: rows of an expert for each row of a step, of the model that
    `decode` was measured with. `grouped_from`: rows of that model's step from which on the experts
    of a model of more experts go through grouped products: where memory is slower, they win sooner.
    `down_of_many`: the variant of such a model's streamed `down` in steps of many rows.
    `narrow`: as `decode`, of a rank, whose experts are at most half as wide as the model.
    """

    decode: dict[int, Choices]
    prefill: dict[int, PrefillChoices]
    num_sms: int  # of the GPU that `splits` are for
    long_attention: LongAttention | None = None  # where the model's heads fit it
    measured_on: tuple[str, ...] = ()  # GPUs by the beginning of their names; none: untuned
    density: float = _DENSITY
    grouped_from: int = 0  # 0: where `decode` has them
    down_of_many: StreamLaunch | None = None  # None: as `decode` has it
    narrow: dict[int, Choices] = field(default_factory=dict)

    def of_model(self, model: ModelConfig) -> Table:
        """The same for a model of more or fewer experts.

        What an expert's products cost depends on the rows that it has, not on those of the step.
        """
        density = model.num_experts_per_tok / model.num_local_experts
        is_narrow = 2 * model.intermediate_size <= model.hidden_size
        whole = replace(self, decode={**self.decode, **(self.narrow if is_narrow else {})})
        decode = {
            rows: whole._with_experts(rows, choices, density / self.density)
            for rows, choices in whole.decode.items()
        }
        return replace(whole, decode=decode, density=density, narrow={})

    def _with_experts(self, rows: int, choices: Choices, share: float) -> Choices:
        """The choices with the experts of a step of `share` as many rows."""
        if rows == 1:  # its kernels add to the residual themselves
            return choices
        like = min(max(math.ceil(rows * share), 2), max(self.decode))
        is_grouped = share < 1 and 0 < self.grouped_from <= like
        size = min(
            size
            for size, each in self.decode.items()
            if size >= like and (not is_grouped or isinstance(each.gate_up, Grouped))
        )
        experts = self.decode[size]
        down, early = experts.down, choices.early
        if isinstance(down, StreamLaunch) and down.stages and share < 1:
            down = self.down_of_many or down
        if isinstance(
            experts.gate_up, StreamLaunch
        ):  # it cannot begin before its experts are known
            early -= {"gate_up"}
        return replace(choices, gate_up=experts.gate_up, down=down, early=early)
