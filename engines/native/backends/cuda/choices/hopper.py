"""Compute capability 9.0: measured on H100 and H200, see docs/engine.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.native.backends.cuda.choices.variants import (
    PARTS,
    Choices,
    Grouped,
    LongAttention,
    PrefillChoices,
    StreamLaunch,
    Table,
    Tiles,
)

_SIDE_BY_SIDE = StreamLaunch(2, 1, 2, side=2)
# In 128 registers gate_up takes 2 to 4 % less time, of 20b with 8 and 32 rows, of 120b with 32 to
# 128. With it and `down_of_many` a step of 120b with 128 rows takes 3 % less.
_GATE_UP = _SIDE_BY_SIDE._replace(registers=128)
# With several rows gate_up, which can do nothing before its experts are known, only takes room.
_ALL_BUT_GATE_UP = PARTS - {"gate_up"}

_BY_ROWS: Final = {
    1: Choices(
        qkv=Tiles(8, 0, 1, 1),
        out=Tiles(4, 0, 1, 1),
        head=Tiles(4, 0, 1, 1),
        gate_up=StreamLaunch(1, 2, 1, stages=2),
        down=StreamLaunch(4, 4, 1, stages=3),
        splits=16,
        early=PARTS,
    ),
    8: Choices(
        qkv=Tiles(64, 128, 2, 4),
        out=Tiles(64, 128, 4, 4),
        head=Tiles(64, 128, 1, 4, is_swapped=False),
        gate_up=_GATE_UP,
        down=_SIDE_BY_SIDE,
        context_tile=64,
        attention_warps=2,
        attention_stages=3,
        early=_ALL_BUT_GATE_UP,
        prefetch=2,
    ),
    32: Choices(
        qkv=Tiles(64, 128, 2, 4),
        out=Tiles(64, 128, 4, 4),
        head=Tiles(128, 128, 1, 4, is_swapped=False),
        gate_up=_GATE_UP,
        down=StreamLaunch(1, 1, 1, stages=3),
        splits=4,
        context_tile=64,
        attention_warps=2,
        attention_stages=3,
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
        context_tile=64,
        attention_warps=2,
        attention_stages=3,
        early=PARTS,
    ),
    128: Choices(
        qkv=Tiles(64, 64, 1, 5),
        out=Tiles(64, 64, 2, 5),
        head=Tiles(128, 64, 1, 4, is_swapped=False),
        gate_up=Grouped(32, 8, 4),
        down=Grouped(32, 4, 4),
        splits=2,
        context_tile=64,
        attention_warps=2,
        attention_stages=3,
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

# Of a rank of two. One row: half as many programs stream the experts, so each has more of its
# inputs on their way at once. A step takes 16 to 19 % less time than with the variants of whole
# experts, one of 8 rows 5 % less; 32 rows and more were not measured.
_NARROW: Final = {
    1: replace(
        _BY_ROWS[1],
        gate_up=StreamLaunch(2, 4, 1, stages=2),
        down=StreamLaunch(4, 8, 2),
    ),
    8: replace(
        _BY_ROWS[8],
        qkv=Tiles(64, 128, 4, 4),
        down=_GATE_UP,
        context_tile=128,
    ),
}

_WIDE = Grouped(64, 8, 8, 4, tiles=1, tail=32)
_WIDEST = Grouped(128, 8, 8, 4, tiles=1, tail=32)

_BY_TOKENS: Final = {
    0: PrefillChoices(Grouped(16, 8, 4, 4, tiles=1), Grouped(16, 4, 4, 4, tiles=1)),
    16: PrefillChoices(Grouped(32, 8, 4, 4, tiles=1), Grouped(32, 8, 4, 4, tiles=1)),
    24: PrefillChoices(_WIDE._replace(num_warps=4), _WIDE._replace(num_warps=4)),
    48: PrefillChoices(_WIDE, _WIDE),
    96: PrefillChoices(_WIDEST, _WIDEST),
}

HOPPER: Final = Table(
    _BY_ROWS,
    _BY_TOKENS,
    num_sms=132,
    long_attention=LongAttention(),
    measured_on=("NVIDIA H200",),
    down_of_many=StreamLaunch(1, 1, 2, stages=3),
    narrow=_NARROW,
)

# Three quarters of the memory bandwidth, and as much arithmetic: gpt-oss-120b's experts take 607 us
# a layer of 128 rows through grouped products and 644 us streamed; on an H200 streamed ones win.
H100: Final = replace(HOPPER, grouped_from=8, measured_on=("NVIDIA H100",))
