"""The kernels of a chunk's attention against the reference, with what other requests left."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    ON_GPU_ONLY,
    relative_error,
)

from engines.native.backends.cpu.attention import read, stored  # isort: skip
from engines.native.backends.cuda.card import Card  # isort: skip
from engines.native.backends.cuda.kernels import (  # isort: skip
    hopper_attention,
    prefill_attention,
)
from tests.engines.native.cuda.kernels.kernel_references import attention_reference  # isort: skip
from engines.native.backends.cuda.kernels.launch import launch  # isort: skip
from engines.native.kv_pool import FP8  # isort: skip

KV_HEADS, GROUP, D = (8, 8, 64) if IS_GPU else (2, 4, 32)
# Positions before, and tokens, of each sequence of a chunk.
RUNS = (
    [(0, 100), (1000, 333), (63, 65), (4000, 1), (129, 40), (0, 16), (70, 250), (0, 1500), (127, 1)]
    if IS_GPU
    else [(0, 5), (30, 18), (63, 1)]
)
IS_HOPPER = IS_GPU and Card.of(DEVICE).capability[0] == 9


class Chunk:
    """Random K/V in permuted blocks, and queries scaled as the kernels want them."""

    def __init__(self, block: int, *, is_fp8: bool = False) -> None:
        generator = torch.Generator().manual_seed(block)
        each = max(start + num for start, num in RUNS) // block + 2
        self.block, num = block, sum(num for _, num in RUNS)
        order = torch.randperm(len(RUNS) * each, generator=generator) + 1
        self.tables = order.view(len(RUNS), each).int().to(DEVICE)
        size = (len(RUNS) * each + 1, block * 2 * KV_HEADS * D)
        kv = torch.randn(size, generator=generator).bfloat16().to(DEVICE)
        self.cache = stored(kv, FP8) if is_fp8 else kv
        q = torch.randn(num, KV_HEADS * GROUP * D, generator=generator)
        self.q = (2 * q).bfloat16().to(DEVICE)
        self.scaled = (self.q.float() * D**-0.5 * math.log2(math.e)).bfloat16()
        self.sinks = torch.randn(KV_HEADS * GROUP, generator=generator).bfloat16().to(DEVICE)
        self.out = torch.full_like(self.q, float("nan"))

    def tiles(self, tokens: int) -> torch.Tensor:
        found, row = [], 0
        for slot, (start, num) in enumerate(RUNS):
            for at in range(0, num, tokens):
                found.append([slot, row + at, start + at, min(tokens, num - at)])
            row += num
        return torch.tensor(found, dtype=torch.int32, device=DEVICE)

    def expected(self, window: int) -> torch.Tensor:
        found, row = [], 0
        for slot, (start, num) in enumerate(RUNS):
            kv = read(self.cache[self.tables[slot].long()], torch.bfloat16).view(
                -1, 2, KV_HEADS, D
            )[: start + num]
            q = self.scaled[row : row + num].double().view(num, -1, D)
            q = q * D**0.5 / math.log2(math.e)
            found.append(attention_reference(q, kv[:, 0], kv[:, 1], self.sinks, window))
            row += num
        return torch.cat(found)

    def shared(self, window: int) -> dict[str, Any]:
        return {
            "TABLE_STRIDE": self.tables.shape[1], "BLOCK": self.block, "KV_HEADS": KV_HEADS,
            "D": D, "GROUP": GROUP, "WINDOW": window, "num_warps": 4,
        }  # fmt: skip


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("window", [0, 128 if IS_GPU else 8])
def test_tiles_of_any_gpu(window: int, is_fp8: bool) -> None:
    chunk = Chunk(block=64, is_fp8=is_fp8)
    tiles = chunk.tiles(16)
    launch(
        prefill_attention.prefill_attention_kernel, (len(tiles), KV_HEADS), chunk.scaled,
        chunk.cache, chunk.tables, chunk.sinks, tiles, chunk.out, BQ=16, BT=64, STAGES=3,
        **chunk.shared(window),
    )  # fmt: skip
    assert relative_error(chunk.out, chunk.expected(window)) < 5e-3


@ON_GPU_ONLY
@pytest.mark.skipif(IS_GPU and not IS_HOPPER, reason="the kernel is Hopper's")
@pytest.mark.parametrize("window", [0, 128])
@pytest.mark.parametrize("block", [16, 64])
def test_tiles_of_hopper(window: int, block: int) -> None:
    chunk = Chunk(block)
    tiles = chunk.tiles(24)
    num_tiles = torch.tensor([len(tiles)], dtype=torch.int32, device=DEVICE)
    spare = torch.cat((tiles, torch.full_like(tiles, -1)))  # beyond num_tiles: not read
    pages = hopper_attention.pages(chunk.cache, KV_HEADS, D, block, 128)
    found = set()
    for _ in range(10):
        chunk.out.fill_(float("nan"))
        launch(
            hopper_attention.hopper_attention_kernel, (Card.of(DEVICE).num_sms,), chunk.scaled,
            pages, chunk.tables, chunk.sinks, spare, num_tiles, chunk.out, BT=128, STAGES=3,
            **chunk.shared(window),
        )  # fmt: skip
        found.add(chunk.out.cpu().view(torch.int16).numpy().tobytes())
    assert relative_error(chunk.out, chunk.expected(window)) < 5e-3
    assert len(found) == 1


@pytest.mark.parametrize("is_fp8", [False, True])
def test_values_behind_a_sequences_end_are_zero_in_its_block(is_fp8: bool) -> None:
    """A kernel that copies whole blocks multiplies them: another request may have left NaN."""
    block, heads, tokens = 16, KV_HEADS * GROUP, 5
    cache = torch.full((3, block, 2, KV_HEADS, D), float("nan"), device=DEVICE).bfloat16()
    if is_fp8:
        cache = stored(cache, FP8)
    tables = torch.tensor([[2, 1]], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([0] * tokens + [-1], dtype=torch.int32, device=DEVICE)
    positions = torch.arange(14, 14 + tokens + 1, device=DEVICE).int()
    qkv = torch.randn(tokens + 1, (heads + 2 * KV_HEADS) * D, device=DEVICE).bfloat16()
    turns = torch.ones(32, D // 2, device=DEVICE)
    large = 1000 * qkv if is_fp8 else qkv  # some are above the largest number of 8 bits
    launch(
        prefill_attention.rotate_write_kernel, (tokens + 1,), large,
        torch.empty(tokens + 1, heads * D, device=DEVICE).bfloat16(), cache, tables, slots,
        positions, turns, turns, TABLE_STRIDE=2, BLOCK=block, KV_HEADS=KV_HEADS, HEADS=heads,
        BH=heads, D=D, SCALE=1.0, num_warps=4,
    )  # fmt: skip
    values = qkv[:tokens, -KV_HEADS * D :].view(tokens, KV_HEADS, D)
    if is_fp8:
        cache = read(cache, torch.bfloat16)
        values = read(stored(1000 * values, FP8), torch.bfloat16)
    found = torch.cat((cache[2, 14:, 1], cache[1, :3, 1]))
    if is_fp8 and not IS_GPU:  # the interpreter rounds ties up
        assert relative_error(found, values) < 2e-2
    else:
        assert torch.equal(found, values)
    assert not cache[1, 3:, 1].any()
    assert cache[2, :14].isnan().all()
