"""A checksum that a GPU takes at the speed of its memory, so that every start can check all."""

from __future__ import annotations

import torch
from torch import Tensor

_WORDS_AT_ONCE = 1 << 22


def checksum(tensor: Tensor) -> str:
    """The tensor's type, shape and the sum of word i * (2 i + 1), modulo 2^64.

    Any word that changes changes the sum, as odd factors have inverses; so do words that change
    places, but for rare ones. The same on every device. It finds accidents, not intruders.
    """
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    padding = -len(flat) % 8
    if padding:
        flat = torch.cat([flat, flat.new_zeros(padding)])
    words = flat.view(torch.int64)
    most = max(1, min(len(words), _WORDS_AT_ONCE))
    odd = torch.arange(1, 2 * most, 2, dtype=torch.int64, device=words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for first in range(0, len(words), _WORDS_AT_ONCE):
        piece = words[first : first + _WORDS_AT_ONCE]
        total += (piece * odd[: len(piece)]).sum() + 2 * first * piece.sum()
    shape = "x".join(str(size) for size in tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape} {int(total) % 2**64:016x}"
