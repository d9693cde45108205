"""The contexts of a chunk's decoding rows, cut into parts of about equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engines.native.backends.cuda.memory.part_sums import MOST_CUT

NUMBERS: Final = 6  # of a part, as kernels/row_attention.py has them
_LEAST: Final = 1024  # keys of a part: with fewer the programs combine more than they gain
_UNIT: Final = 128  # keys: parts begin at multiples of a tile


class DecodingRow(NamedTuple):
    """A token of a chunk that attends to its whole context."""

    slot: int
    row: int  # in the chunk
    position: int


def parts_of(rows: Sequence[DecodingRow], least: int = _LEAST) -> Tensor:
    """The parts (parts, NUMBERS) int32 on the host, each of `least` keys or more if it is not the
    last of its row."""
    if not rows:
        return torch.empty((0, NUMBERS), dtype=torch.int32)
    slots, places, positions = np.array(rows, np.int64).T
    keys = positions + 1
    unit = min(_UNIT, least)
    length = max(least, -(-int(keys.sum()) // (MOST_CUT * unit)) * unit)
    counts = -(-keys // length)
    firsts = counts.cumsum() - counts
    of_row = np.repeat(np.arange(len(rows)), counts)
    starts = (np.arange(len(of_row)) - firsts[of_row]) * length
    ends = np.minimum(starts + length, keys[of_row])
    columns = slots[of_row], places[of_row], starts, ends, firsts[of_row], counts[of_row]
    return torch.from_numpy(np.stack(columns, 1).astype(np.int32))
