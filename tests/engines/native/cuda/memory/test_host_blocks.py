"""Blocks go to host memory and come back bit for bit, in the order of the moves."""

from __future__ import annotations

import random

import pytest
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE

from engines.native.backends.base import Move  # isort: skip
from engines.native.backends.cuda.memory import host_blocks  # isort: skip
from engines.native.backends.cuda.memory import pinned  # isort: skip
from engines.native.backends.cuda.memory.host_blocks import CudaHostBlocks  # isort: skip

NUM_BLOCKS, NUM_PLACES = 23, 37
NEW = 1.0  # what a block holds that a step wrote

Device = list[torch.Tensor]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of three blocks and pieces of five places, of 8 x (6 + 4) bytes each."""
    monkeypatch.setattr(host_blocks, "STAGING_BYTES", 8 * 3 * 80)
    monkeypatch.setattr(pinned, "PIECE_BYTES", 5 * 80)


def made() -> Device:
    """K/V of three layers and of a head."""
    shapes = ((3, NUM_BLOCKS, 8), (1, NUM_BLOCKS, 16))
    return [torch.randn(shape, device=DEVICE).bfloat16() for shape in shapes]


def contents(tensors: Device) -> list[list[list[float]]]:
    """By block."""
    return [[t[:, i].flatten().tolist() for t in tensors] for i in range(NUM_BLOCKS)]


@pytest.mark.parametrize("seed", range(4))
def test_each_step_finds_what_the_moves_before_it_left(seed: int) -> None:
    chance, tensors = random.Random(seed), made()
    host = CudaHostBlocks(tensors, NUM_PLACES)
    on_device = contents(tensors)
    on_host = dict[int, list[list[float]]]()
    for _ in range(12):
        moves = []
        for _ in range(chance.randrange(30)):
            block = chance.randrange(1, NUM_BLOCKS)
            is_save = not on_host or chance.random() < 0.5
            place = chance.randrange(NUM_PLACES) if is_save else chance.choice([*on_host])
            moves.append(Move(block, place, is_save))
            if is_save:
                on_host[place] = on_device[block]
            else:
                on_device[block] = on_host[place]
        host.move(moves, is_needed=chance.random() < 0.5)
        saved = [move.block for move in moves if move.is_save]
        loaded = {move.block for move in moves if not move.is_save}
        for block in chance.sample(range(1, NUM_BLOCKS), 4) + saved[:3]:
            if block not in loaded:  # the step writes what was saved; who waits for loads does not
                for tensor in tensors:
                    tensor[:, block] += NEW
                on_device[block] = [tensor[:, block].flatten().tolist() for tensor in tensors]
    host.move((), is_needed=True)
    assert contents(tensors) == on_device


@pytest.mark.parametrize("is_full", [False, True])
def test_a_prompt_that_takes_the_place_of_another_needs_few_batches(*, is_full: bool) -> None:
    """Each of its blocks is loaded right after the save of what it replaces; in a full memory that
    save takes the place of the block that was loaded before."""
    moves = []
    for i in range(650):
        moves.append(Move(1 + i, 1000 + i - 1 if is_full else 2000 + i, is_save=True))
        moves.append(Move(1 + i, 1000 + i, is_save=False))
    found = [*host_blocks.batches(moves, 20)]
    assert len(found) == 33
    for is_save, pairs in ((True, [s for s, _ in found]), (False, [p for _, p in found])):
        assert sorted(pair for each in pairs for pair in each) == sorted(
            (place, block) for block, place, of_save in moves if of_save == is_save
        )


def test_its_size_and_the_time_of_a_copy_are_told() -> None:
    capacity = CudaHostBlocks(made(), NUM_PLACES).capacity()
    assert (capacity.num_blocks, capacity.block_bytes) == (NUM_PLACES, 80)
    assert (capacity.load_s > 0) == (DEVICE.type == "cuda")
