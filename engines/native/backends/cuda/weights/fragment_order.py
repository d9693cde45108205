"""MXFP4 weights in fragment order: the order in which the tensor cores want them.

A group of 16 output rows and 64 inputs is one tile of 32 lanes x 16 bytes. Lane (g, q), g in
0..8 and q in 0..4, holds rows g and g + 8 of the group, as `mma.m16n8k16` wants its A operand:
a warp's 512-byte load is the fragment itself, and nothing is moved between lanes.

    word   2 * block + pair of a lane: inputs 32 * block + 8 * q + 4 * pair + 0..3
    half   0 and 1 of a word: even and odd inputs
    bits   of a half, sign and magnitude (e2m1) apart, so that masks and shifts alone make floats:
           row g,     inputs 0, 1: sign 15, magnitude 9..11
           row g + 8, inputs 0, 1: sign 12, magnitude 6..8
           row g,     inputs 2, 3: sign 14, magnitude 3..5
           row g + 8, inputs 2, 3: sign 13, magnitude 0..2

Scales: a word for (g, tile) has the exponents of (row g, block 0), (g + 8, block 0),
(g, block 1), (g + 8, block 1), each raised by 14 to make up for the exponent bias that fp16
codes lack. Three tiles form a supertile, whose fourth scale word is unused: one 16-byte load.

Inputs are padded with zeros to a whole supertile. Groups of gate_up take 8 gates and then their
8 ups, so that SwiGLU's two operands meet in one lane.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor

LAYOUT: Final = 1  # of packed files: raised when a checkpoint gives other bytes; a test tells
GROUP_ROWS: Final = 16
TILE: Final = 64  # inputs of a tile
SUPERTILE: Final = 192  # inputs of three tiles
RAISED: Final = 14  # what is added to each exponent: fp16 codes are short of 2**14
_MAX_EXPONENT: Final = 128  # above 2**1 a bfloat16 scale of the prefill kernels would overflow

_SIGNS = (15, 12, 14, 13)  # bit of the sign, by 2 * (inputs 2, 3) + (row g + 8)
_MAGNITUDES = (9, 6, 3, 0)


def padded(num_inputs: int) -> int:
    """The number of inputs in a packed row: the next whole supertile."""
    return -(-num_inputs // SUPERTILE) * SUPERTILE


def pack(blocks: Tensor, scales: Tensor, *, is_gate_up: bool = False) -> tuple[Tensor, Tensor]:
    """Reorder published MXFP4 weights; `unpack` undoes it bit by bit.

    blocks: uint8 (experts, rows, inputs / 32, 16), low nibble first; scales: uint8 (experts,
    rows, inputs / 32); rows a multiple of 16. Returns int32 words (experts, groups, 2 * padded
    inputs) and int32 scales (experts, groups, padded inputs / 6). ValueError if a weight's scale
    is above 2.
    """
    largest = int(scales.max()) if scales.numel() else 0
    if largest > _MAX_EXPONENT:
        raise ValueError(f"an MXFP4 scale is 2**{largest - 127}; at most 2**1 is handled")
    pairs, scales = _pad(blocks.flatten(2), 2), _pad(scales, 32)
    if is_gate_up:
        order = row_order(pairs.shape[1], is_gate_up, pairs.device)
        pairs, scales = pairs[:, order], scales[:, order]
    return _pack_pairs(pairs), _pack_scales(scales)


def unpack(words: Tensor, scales: Tensor, *, is_gate_up: bool = False) -> tuple[Tensor, Tensor]:
    """Back to published order, inputs still padded: codes (experts, rows, inputs) uint8, one
    code a byte, and exponents (experts, rows, inputs / 32) uint8."""
    experts, groups = words.shape[:2]
    w = words.view(experts, groups, -1, 8, 4, 2, 2)  # tile, g, q, block, pair
    halves = torch.stack((w & 0xFFFF, (w >> 16) & 0xFFFF), dim=-1)
    rows = [[_code(halves, 2 * late + low) for late in range(2)] for low in range(2)]
    codes = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-1)
    # tile g q block pair half late low -> low g tile block q pair late half
    codes = codes.permute(0, 1, 9, 3, 2, 5, 4, 6, 8, 7).reshape(experts, groups * GROUP_ROWS, -1)
    s = scales.view(experts, groups, -1, 8, 4)[..., :3]  # supertile, g, tile
    parts = [(s >> (8 * i)) & 0xFF for i in range(4)]
    exponents = torch.stack(parts, dim=-1).unflatten(-1, (2, 2))  # block, low
    exponents = exponents.permute(0, 1, 6, 3, 2, 4, 5).reshape(experts, groups * GROUP_ROWS, -1)
    exponents = torch.where(exponents == 0, 0, exponents - RAISED)
    inverse = row_order(codes.shape[1], is_gate_up, codes.device).argsort()
    return codes[:, inverse].to(torch.uint8), exponents[:, inverse].to(torch.uint8)


def plain(values: Tensor, *, is_gate_up: bool = False) -> Tensor:
    """bf16 weights (experts, rows, inputs) with rows as packed ones have them and inputs by place
    (kernels/fragments.py): what the grouped kernels multiply where nothing is packed."""
    values = _pad(values, 1)
    order = row_order(values.shape[1], is_gate_up, values.device)
    return values[:, order][..., inputs_by_place(values.shape[2])].contiguous()


def inputs_by_place(num_inputs: int) -> Tensor:
    """The input at each place of a row: the inverse of kernels/fragments.py's place."""
    inputs = torch.arange(num_inputs).view(-1, 4, 2, 2, 2)  # block q pair late half
    return inputs.permute(0, 2, 3, 1, 4).flatten()


def _pad(values: Tensor, inputs_per_value: int) -> Tensor:
    wanted = padded(values.shape[-1] * inputs_per_value) // inputs_per_value
    return torch.nn.functional.pad(values, (0, wanted - values.shape[-1]))


def row_order(num_rows: int, is_gate_up: bool, device: torch.device) -> Tensor:
    rows = torch.arange(num_rows, device=device)
    return rows.view(-1, 8, 2).transpose(1, 2).flatten() if is_gate_up else rows


def _pack_pairs(pairs: Tensor) -> Tensor:
    """The words of bytes (experts, rows, inputs / 2) with two codes each.

    A word is of four inputs of two rows: of each row 16 bits, which a table of all of them turns
    into its bits of the word. Shifting code by code takes ten times as long.
    """
    experts, num_rows, num_bytes = pairs.shape
    fours = (
        pairs.contiguous()
        .view(torch.int16)
        .view(experts, num_rows // GROUP_ROWS, 2, 8, 2 * num_bytes // TILE, 2, 4, 2)
    )  # low, g, tile, block, q, pair
    word = torch.zeros_like(fours[:, :, 0], dtype=torch.int32)
    for low, table in enumerate(_bits_of_fours(pairs.device)):
        index = fours[:, :, low].to(torch.int32) & 0xFFFF
        word |= table.index_select(0, index.flatten()).view(word.shape)
    # g tile block q pair -> tile g q block pair
    return word.permute(0, 1, 3, 2, 5, 4, 6).flatten(2).contiguous()


@cache
def _bits_of_fours(device: torch.device) -> tuple[Tensor, Tensor]:
    """What four codes, the first in the lowest bits, set in a word: as row g, and as row g + 8."""
    fours = torch.arange(1 << 16, dtype=torch.int32, device=device)
    tables = []
    for low in range(2):
        word = torch.zeros_like(fours)
        for late in range(2):
            field = 2 * late + low
            for half in range(2):
                code = fours >> (8 * late + 4 * half)
                bits = (((code >> 3) & 1) << _SIGNS[field]) | ((code & 7) << _MAGNITUDES[field])
                word |= bits << (16 * half)
        tables.append(word)
    return tables[0], tables[1]


def _pack_scales(scales: Tensor) -> Tensor:
    experts, num_rows, _ = scales.shape
    raised = torch.where(scales == 0, 0, scales.to(torch.int32) + RAISED)
    s = raised.view(experts, num_rows // GROUP_ROWS, 2, 8, -1, 3, 2)  # low g supertile tile block
    word = s[:, :, 0, ..., 0] | (s[:, :, 1, ..., 0] << 8)
    word |= (s[:, :, 0, ..., 1] << 16) | (s[:, :, 1, ..., 1] << 24)
    word = torch.nn.functional.pad(word, (0, 1))  # the unused fourth word
    return word.transpose(2, 3).flatten(2).contiguous()


def _code(halves: Tensor, field: int) -> Tensor:
    sign = (halves >> _SIGNS[field]) & 1
    return (sign << 3) | ((halves >> _MAGNITUDES[field]) & 7)
