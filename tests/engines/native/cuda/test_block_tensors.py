"""K/V leave the blocks of one device and enter another's bit for bit, behind what came before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE

from engines.native.backends.base import Move  # isort: skip
from engines.native.backends.block_tensors import BlockTensors  # isort: skip
from engines.native.backends.cuda.memory.host_blocks import CudaHostBlocks  # isort: skip

NUM_BLOCKS = 23


def made(seed: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """K/V of three layers and of a head."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((3, NUM_BLOCKS, 8), (1, NUM_BLOCKS, 16))
    return [torch.randn(shape, generator=generator).to(DEVICE).to(dtype) for shape in shapes]


def test_blocks_of_any_size_are_exchanged() -> None:
    tensors = [torch.arange(2 * 4 * 3, dtype=torch.uint8, device=DEVICE).view(2, 4, 3)]
    access = BlockTensors(tensors, no_moves)
    content = access.copy_out([3], ())()
    assert content.tolist() == [[9, 10, 11, 21, 22, 23]]
    access.copy_in([0], [1], access.staged(content), ())
    assert torch.equal(tensors[0][:, 1], tensors[0][:, 3])


def no_moves(moves: tuple[Move, ...]) -> None:
    assert not moves


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_chosen_rows_of_what_was_copied_out_are_copied_in(dtype: torch.dtype) -> None:
    ours, theirs = made(1, dtype), made(2, dtype)
    giving, taking = (BlockTensors(each, no_moves) for each in (ours, theirs))
    before = [each.clone() for each in theirs]
    content = giving.copy_out([5, 1, 22], ())()
    assert content.dtype == np.uint8
    assert content.shape == (3, giving.block_bytes)
    assert giving.layout == taking.layout
    staged = taking.staged(np.frombuffer(bytearray(content.tobytes()), np.uint8).reshape(3, -1))
    taking.copy_in([0, 2], [7, 8], staged, ())
    for mine, there, old in zip(ours, theirs, before, strict=True):
        assert torch.equal(there[:, 7], mine[:, 5])
        assert torch.equal(there[:, 8], mine[:, 22])
        others = [i for i in range(NUM_BLOCKS) if i not in (7, 8)]
        assert torch.equal(there[:, others], old[:, others])


def test_memory_is_not_given_again_before_it_was_copied_from() -> None:
    (tensor, _) = made(6, torch.uint8)
    access = BlockTensors([tensor], no_moves)
    if DEVICE.type == "cuda":  # the copies wait for this
        torch.cuda._sleep(100_000_000)
    for block in range(NUM_BLOCKS):
        content = access.room(access.block_bytes)
        content[:] = block
        access.copy_in([0], [block], access.staged(content.reshape(1, -1)), ())
        del content
    assert [tensor[:, i].unique().tolist() for i in range(NUM_BLOCKS)] == [
        [i] for i in range(NUM_BLOCKS)
    ]


def test_what_is_to_be_loaded_is_copied_out_and_what_is_to_be_saved_is_saved_first() -> None:
    """The moves come before the copies: a block may be evicted to the host and filled at once."""
    tensors = made(3)
    host = CudaHostBlocks(tensors, 4)
    access = BlockTensors(tensors, lambda moves: host.move(moves, is_needed=True))
    first = [each[:, 5].clone() for each in tensors]
    new = BlockTensors(made(4), no_moves).copy_out([9], ())()
    access.copy_in([0], [5], access.staged(new), (Move(5, 2, is_save=True),))
    assert np.array_equal(access.copy_out([5], ())(), new)
    content = access.copy_out([6], (Move(6, 2, is_save=False),))()
    fresh = made(5)
    into = BlockTensors(fresh, no_moves)
    into.copy_in([0], [1], into.staged(content), ())
    for tensor, saved in zip(fresh, first, strict=True):
        assert torch.equal(tensor[:, 1], saved)


def test_layouts_differ_where_blocks_do() -> None:
    layouts = {
        BlockTensors(tensors, None).layout
        for tensors in (made(0), made(0)[:1], made(0)[::-1], made(0, torch.float32))
    }
    assert len(layouts) == 4
