"""Which kernel variant runs at how many rows: measured on H100 and H200, see docs/engine.md."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple


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
    early: frozenset[str] = frozenset()  # parts that begin before the part before has ended
    prefetch: int = 0  # steps of a product's weights that it asks for before its input is there


_SIDE_BY_SIDE = StreamLaunch(2, 1, 2, side=2)
# With several rows gate_up, which can do nothing before it is told its experts, only takes room.
_ALL_BUT_GATE_UP = PARTS - {"gate_up"}

_BY_ROWS = {
    1: Choices(
        qkv=Tiles(8, 0, 1, 1),
        out=Tiles(4, 0, 1, 1),
        head=Tiles(4, 0, 1, 1),
        gate_up=StreamLaunch(1, 1, 1),
        down=StreamLaunch(4, 4, 1, stages=3),
        splits=16,
        early=PARTS,
    ),
    8: Choices(
        qkv=Tiles(64, 128, 2, 4),
        out=Tiles(64, 128, 4, 4),
        head=Tiles(64, 128, 1, 4, is_swapped=False),
        gate_up=_SIDE_BY_SIDE,
        down=_SIDE_BY_SIDE,
        early=_ALL_BUT_GATE_UP,
        prefetch=2,
    ),
    32: Choices(
        qkv=Tiles(64, 128, 2, 4),
        out=Tiles(64, 128, 4, 4),
        head=Tiles(128, 128, 1, 4, is_swapped=False),
        gate_up=_SIDE_BY_SIDE,
        down=StreamLaunch(1, 1, 1, stages=3),
        splits=4,
        router_each=2,
        early=_ALL_BUT_GATE_UP,
        prefetch=2,
    ),
    64: Choices(
        qkv=Tiles(64, 64, 2, 6),
        out=Tiles(64, 128, 4, 4),
        head=Tiles(128, 64, 1, 4, is_swapped=False),
        gate_up=Grouped(16, 8, 4),
        down=Grouped(16, 4, 4),
        splits=2,
        early=PARTS,
    ),
    128: Choices(
        qkv=Tiles(64, 64, 1, 5),
        out=Tiles(64, 64, 2, 5),
        head=Tiles(128, 64, 1, 4, is_swapped=False),
        gate_up=Grouped(32, 8, 4),
        down=Grouped(32, 4, 4),
        splits=2,
        attention_warps=4,
        early=PARTS,
    ),
    256: Choices(
        qkv=Tiles(64, 64, 2, 4),
        out=Tiles(64, 64, 2, 4),
        head=Tiles(128, 64, 1, 3, is_swapped=False, num_warps=8),
        gate_up=Grouped(64, 8, 4, 4, tiles=1, tail=32),
        down=Grouped(64, 8, 4, 4, tiles=1, tail=32),
        splits=1,
        context_tile=64,
        attention_warps=4,
        attention_stages=3,
    ),
    512: Choices(
        qkv=Tiles(128, 64, 1, 4, is_swapped=False, num_warps=8, bm=128),
        out=Tiles(64, 64, 1, 4, is_swapped=False, bm=128),
        head=Tiles(128, 64, 1, 3, is_swapped=False, num_warps=8),
        gate_up=Grouped(64, 8, 4, 4, tiles=1, tail=32),
        down=Grouped(64, 8, 4, 4, tiles=1, tail=32),
        splits=1,
        context_tile=64,
        attention_warps=4,
        attention_stages=3,
    ),
    1024: Choices(
        qkv=Tiles(128, 64, 1, 4, is_swapped=False, num_warps=8, bm=128),
        out=Tiles(128, 64, 1, 4, is_swapped=False, num_warps=8, bm=128),
        head=Tiles(128, 64, 1, 3, is_swapped=False, num_warps=8),
        gate_up=Grouped(128, 8, 8, 4, tiles=1),
        down=Grouped(128, 8, 8, 4, tiles=1),
        splits=1,
        context_tile=64,
        attention_warps=4,
        attention_stages=3,
    ),
}
MAX_ROWS = max(_BY_ROWS)  # of a decode step


def prefill_choice(tokens_an_expert: int, is_gate_up: bool) -> Grouped:
    """The variant of a product of a chunk: tiles of about as many rows as an expert has."""
    if tokens_an_expert >= 128:
        return Grouped(128, 8, 8, 4, tiles=1, tail=32)
    bm = max(1 << tokens_an_expert.bit_length() >> 1, 16)
    return Grouped(bm, 8 if is_gate_up else 4, 4, tiles=1)


def choices_for(rows: int, is_packed: bool = True) -> Choices:
    """The measured choices of the smallest bucket that holds `rows`.

    Experts that are not packed are not streamed: they go through the grouped products at any
    number of rows. None of that is tuned.
    """
    bucket = min(size for size in _BY_ROWS if size >= rows)
    if is_packed:
        return _BY_ROWS[bucket]
    return replace(_BY_ROWS[max(bucket, 8)], gate_up=Grouped(16, 8, 4), down=Grouped(16, 4, 4))
