"""Architectures that were not measured yet: Hopper's choices, adapted to their limits.

Compiled and limit-checked (tests/engines/native/cuda/offline/test_offline.py), not run on these
cards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engines.native.backends.cuda.choices.hopper import HOPPER
from engines.native.backends.cuda.choices.variants import (
    Choices,
    PrefillChoices,
    Table,
    Tiles,
)

_ANYWHERE: Final = replace(HOPPER, long_attention=None, measured_on=(), narrow={})
_WIDE: Final = 64 * 192  # sums of a tile from which on four warps' registers do not hold them


def _without_overlap(table: Table) -> Table:
    """No part begins early: programmatic dependent launch is there from 9.0 on."""
    decode = {
        rows: replace(choices, early=frozenset(), prefetch=0)
        for rows, choices in table.decode.items()
    }
    return replace(table, decode=decode)


def _in_fewer_registers(table: Table) -> Table:
    """Eight warps for wide tiles, whose sums are in the registers of the warps."""

    def wider(rows: int, tiles: Tiles) -> Tiles:
        is_wide = tiles.bk and min(rows, tiles.bm) * tiles.bn >= _WIDE
        return tiles._replace(num_warps=8) if is_wide else tiles

    def of(rows: int, choices: Choices) -> Choices:
        return replace(
            choices,
            qkv=wider(rows, choices.qkv),
            out=wider(rows, choices.out),
            head=wider(rows, choices.head),
        )

    return replace(table, decode={rows: of(rows, each) for rows, each in table.decode.items()})


def _in_99_kb(table: Table) -> Table:
    """Three stages at most, for cards whose programs have 99 KB of shared memory."""

    def fewer(tiles: Tiles) -> Tiles:
        return tiles._replace(stages=min(tiles.stages, 3))

    def of(choices: Choices) -> Choices:
        return replace(
            choices,
            qkv=fewer(choices.qkv),
            out=fewer(choices.out),
            head=fewer(choices.head),
            router_stages=3,
        )

    def of_chunk(choices: PrefillChoices) -> PrefillChoices:
        return choices._replace(router_stages=3)

    return replace(
        table,
        decode={rows: of(each) for rows, each in table.decode.items()},
        prefill={tokens: of_chunk(each) for tokens, each in table.prefill.items()},
    )


AMPERE: Final = _in_fewer_registers(_without_overlap(_ANYWHERE))
"""8.0 and 8.7: 163 KB of shared memory."""

ADA: Final = _in_99_kb(AMPERE)
"""8.6 and 8.9: 99 KB."""

BLACKWELL: Final = _in_fewer_registers(_ANYWHERE)
"""10.x and 11.0: 227 KB, tcgen05."""

BLACKWELL_RTX: Final = _in_99_kb(BLACKWELL)
"""12.x: 99 KB, and the tensor cores of Ada with parts that begin early."""
