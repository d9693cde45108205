"""The draw: distribution, filters, and numbers that are none."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch

from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, IS_GPU, ON_GPU_ONLY
from tests.engines.native.cuda.sampling.sampler_case import SamplerCase

from engines.base import SamplingParams  # isort: skip
from engines.native.backends.cuda.memory.transfer import Transfer  # isort: skip
from engines.native.backends.cuda.sampling.fields import SlotFields  # isort: skip
from engines.native.backends.cuda.steps.buffers import Rows, SlotTensors  # isort: skip
from engines.native.backends.cuda.kernels import verify  # isort: skip
from engines.native.backends.cuda.kernels.launch import launch  # isort: skip
from engines.native.backends.cuda.sampling.outcome import num_accepted  # isort: skip
from engines.native.backends.cuda.sampling.sampler import OUT, Sampler  # isort: skip
from engines.native.backends.cuda.steps.verify import MAX_DRAFTS  # isort: skip

NUM_DRAWS = 4096 if IS_GPU else 48


def draw(
    logits: torch.Tensor, temperature: float, floor: float = OUT, num: int = NUM_DRAWS
) -> torch.Tensor:
    """One row for each draw, all of one seed, at consecutive places of the answer."""
    slots = SlotTensors.allocate(1, 1, DEVICE)
    slots.temperatures.fill_(temperature)
    slots.seeds.fill_(-5)
    fields = SlotFields(1, Transfer(DEVICE))
    sampler = Sampler(Rows(num, DEVICE), slots, fields, len(logits))
    sampler.logits.copy_(logits.expand(num, -1))
    sampler.floors.fill_(floor)
    sampler.rows.num_rows.fill_(num)
    sampler.rows.generated.copy_(torch.arange(num))
    sampler.run(num)
    return sampler.rows.sampled.cpu()


def test_draws_follow_the_distribution() -> None:
    shares = torch.tensor([0.5, 0.25, 0.15, 0.1])
    tokens = draw(shares.log().to(DEVICE), 1.0)
    found = torch.bincount(tokens, minlength=4) / NUM_DRAWS
    assert torch.allclose(found, shares, atol=4 * 0.5 / NUM_DRAWS**0.5)


@ON_GPU_ONLY
def test_temperature_sharpens_and_zero_is_greedy() -> None:
    logits = torch.tensor([0.0, 1.0, 0.5, -1.0], device=DEVICE)
    sharp = torch.bincount(draw(logits, 0.25), minlength=4) / NUM_DRAWS
    expected = torch.softmax(logits.cpu() / 0.25, 0)
    assert torch.allclose(sharp, expected, atol=4 * 0.5 / NUM_DRAWS**0.5)
    assert draw(logits, 0.0).unique().tolist() == [1]


def test_a_floor_leaves_the_rest_out() -> None:
    logits = torch.tensor([0.0, 1.0, 0.5, -1.0], device=DEVICE)
    assert set(draw(logits, 1.0, floor=0.5, num=12).tolist()) == {1, 2}


def test_what_is_no_number_is_told() -> None:
    logits = torch.tensor([0.0, float("nan"), 0.5, -1.0], device=DEVICE)
    assert draw(logits, 1.0, num=1).unique().tolist() == [-1]


def test_floors_of_each_filter() -> None:
    shares = torch.tensor([[0.5, 0.25, 0.15, 0.1]], device=DEVICE).log()
    cases = [
        (SamplingParams(1, top_k=3), 3),
        (SamplingParams(1, top_p=0.6), 2),
        (SamplingParams(1, top_p=0.5), 1),
        (SamplingParams(1, min_p=0.25), 3),
        (SamplingParams(1, top_k=2, top_p=0.9), 2),
        (SamplingParams(1, top_k=2, top_p=0.6), 1),
        (SamplingParams(1, temperature=100.0, top_p=0.6), 3),
    ]
    params = [each for each, _ in cases]
    floors = SamplerCase(shares.expand(len(cases), -1), params).floors()
    assert (shares >= floors[:, None]).sum(1).tolist() == [num for _, num in cases]


def test_masks_put_tokens_out_of_their_rows_alone() -> None:
    case = SamplerCase(torch.zeros(24, 40, device=DEVICE), [SamplingParams(1)])
    masks = {row: np.array([1 << row % 7, -(1 << 7)], dtype=np.int32) for row in range(0, 24, 2)}
    words = case.sampler.set_masks(masks, 24, Transfer(DEVICE))
    case.sampler.exclude(24)
    assert len(words) == 12
    logits = case.sampler.logits
    for row, of_row in enumerate(logits):
        left = (of_row == 0).nonzero().flatten().tolist()
        assert left == ([row % 7, 39] if row % 2 == 0 else [*range(40)])
    assert set(logits.unique().tolist()) == {0.0, torch.tensor(OUT).item()}


@ON_GPU_ONLY
def test_the_tokens_of_verified_guesses_have_the_models_distribution() -> None:
    """Chi-square over 4,000 seeds; the outcomes are the guesses accepted and the token after."""
    num_seeds, drafts, temperature = 4000, (2, 4), 0.8
    torch.manual_seed(0)
    logits = torch.randn(3, 5)
    slots = SlotTensors.allocate(num_seeds, 1, DEVICE)
    slots.temperatures.fill_(temperature)
    slots.seeds.copy_(torch.arange(num_seeds))
    rows = Rows(3 * num_seeds, DEVICE)
    sampler = Sampler(rows, slots, SlotFields(num_seeds, Transfer(DEVICE)), 5)
    sampler.logits.copy_(logits.repeat(num_seeds, 1))
    rows.num_rows.fill_(3 * num_seeds)
    rows.slots.copy_(torch.arange(num_seeds).repeat_interleave(3))
    rows.generated.copy_(torch.arange(1, 4).repeat(num_seeds))
    sampler.run(3 * num_seeds)
    guesses = torch.tensor([-1, *drafts], dtype=torch.int32, device=DEVICE).repeat(num_seeds)
    firsts = 3 * torch.arange(num_seeds, dtype=torch.int32, device=DEVICE).repeat_interleave(3)
    launch(
        verify.accept_kernel, (3 * num_seeds,), rows.sampled, guesses, firsts, rows.slots,
        slots.token_ids, rows.num_rows, MOST=MAX_DRAFTS + 1, num_warps=1,
    )  # fmt: skip
    sampled = rows.sampled.view(-1, 3).tolist()
    drawn = [tuple(tokens[: num_accepted(tokens, drafts) + 1]) for tokens in sampled]
    assert [tokens[-1] for tokens in drawn] == slots.token_ids.tolist()
    shares = torch.softmax(logits.double() / temperature, dim=1).tolist()
    expected: dict[tuple[int, ...], float] = {}
    for num in range(3):
        before = math.prod(shares[i][drafts[i]] for i in range(num))
        for token in range(5):
            if num == 2 or token != drafts[num]:
                expected[(*drafts[:num], token)] = num_seeds * before * shares[num][token]
    found = Counter(drawn)
    assert len(expected) == 13
    assert found.keys() <= expected.keys()
    statistic = sum((found[outcome] - n) ** 2 / n for outcome, n in expected.items())
    assert statistic < 32.9  # 12 degrees of freedom: 1 of 1,000 right samplers is above
