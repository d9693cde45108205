"""Weights of one row of tokens: which are cut off before the draw, the largest, and the draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engines.native.host.slots import Slot

Floats = NDArray[np.floating[Any]]

_BLOCK = 128  # a row is searched in two levels: blocks of this many tokens, then tokens


def least_weight(row: Floats, slot: Slot, shared: float = 0.0, num_others: int = 0) -> float:
    """The weight a token needs to stay in the draw; equals stay or go together.

    `num_others` more tokens have the weight `shared`, which is in the row once.
    """
    sampling = slot.sampling
    cut = sampling.min_p * float(row.max())
    if 0 < sampling.top_k < len(row) + num_others:
        cut = max(cut, _kth(row, sampling.top_k, shared, num_others))
    if sampling.top_p < 1.0:
        return _nucleus_cut(row, cut, sampling.top_p, shared, num_others)
    return cut


def _kth(row: Floats, k: int, shared: float, num_others: int) -> float:
    """The k-th largest weight."""
    num_before = int((row >= shared).sum()) if num_others else 0  # and the others after them
    if num_others and k > int((row > shared).sum()):
        if k <= num_before + num_others:
            return shared
        k -= num_others
    return float(row[largest(row, k)[-1]])


def _nucleus_cut(row: Floats, cut: float, top_p: float, shared: float, num_others: int) -> float:
    """The least weight among the fewest tokens that make up top_p of those above cut."""
    mass = 1.0
    if cut > 0.0 or num_others:
        mass = float(row[row >= cut].sum(dtype=np.float64))
        mass += shared * num_others if shared >= cut else 0.0
    # All tokens below this share of the rest are together lighter than the rest: no need to
    # sort them.
    floor = max(cut, 0.99 * (1.0 - top_p) * mass / (len(row) + num_others))
    best_first = np.sort(row[row >= floor])[::-1]
    weights = best_first.astype(np.float64)
    if num_others and shared >= floor:
        weights[int(np.searchsorted(-best_first, -shared))] += shared * num_others
    reached = np.cumsum(weights)
    last = min(int(np.searchsorted(reached, top_p * mass)), len(best_first) - 1)
    return float(best_first[last])


def largest(row: Floats, k: int) -> NDArray[np.intp]:
    """Ids of the k largest values, largest first."""
    num_whole = len(row) // _BLOCK
    if not 0 < k < num_whole:
        return _top_ids(row, k)
    # The k largest values lie in the k blocks with the largest maxima, or in the short last one.
    maxima = row[: num_whole * _BLOCK].reshape(num_whole, _BLOCK).max(axis=1)
    starts = _top_ids(maxima, k)[:, np.newaxis] * _BLOCK
    ids = np.concatenate(
        [(starts + np.arange(_BLOCK)).ravel(), np.arange(num_whole * _BLOCK, len(row))]
    )
    best: NDArray[np.intp] = ids[_top_ids(row[ids], k)]
    return best


def _top_ids(values: Floats, k: int) -> NDArray[np.intp]:
    ids: NDArray[np.intp] = torch.from_numpy(values).topk(k).indices.numpy()
    return ids


def block_sums(rows: Floats) -> Floats:
    """(rows, vocab_size) -> (rows, blocks); the last block has the remainder."""
    num_whole = rows.shape[1] // _BLOCK
    whole = torch.from_numpy(rows[:, : num_whole * _BLOCK]).view(len(rows), num_whole, _BLOCK)
    rest = rows[:, num_whole * _BLOCK :].sum(axis=1, keepdims=True)
    return np.concatenate([whole.sum(dim=2).numpy(), rest], axis=1)


def draw(weights: Floats, sums_of_blocks: Floats, uniform: float) -> int:
    """The token at which the running sum of weights passes uniform times their total."""
    sums = np.cumsum(sums_of_blocks, dtype=np.float64)
    target = uniform * sums[-1]
    block = int(np.searchsorted(sums, target, side="right"))
    left = target - (sums[block - 1] if block else 0.0)
    inside = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    # The two sums of a block differ in their last bits: never step past its last real weight.
    last = int(np.searchsorted(inside, inside[-1], side="left"))
    return block * _BLOCK + min(int(np.searchsorted(inside, left, side="right")), last)
