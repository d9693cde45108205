"""The distribution of the next token, and that nothing but the request decides the draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engines.base import SamplingParams
from engines.native.backends.base import Sampled, SlotStart
from engines.native.host import sampler
from engines.native.host.slots import Logits, Slot
from tests.close import assert_close
from tests.examples import examples

MakeSlot = Callable[..., Slot]

PROBABILITIES = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
LOGITS = PROBABILITIES.log() + 3.0
WIDE = torch.randn(3, 201_088, generator=torch.Generator().manual_seed(1)) * 4


def sample(logits: torch.Tensor, slots: list[Slot]) -> list[Sampled]:
    return sampler.sample(Logits(logits), slots)


def draw_many(
    make_slot: MakeSlot, logits: torch.Tensor, num_draws: int = 1000, **options: Any
) -> torch.Tensor:
    """Relative frequencies of the tokens over many seeds."""
    slots = [make_slot(seed=seed, **options) for seed in range(num_draws)]
    tokens = sample(logits.repeat(num_draws, 1), slots)
    counts = torch.bincount(torch.tensor([t.token_ids[0] for t in tokens]), minlength=len(logits))
    return counts / num_draws


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]),
        ({"top_k": 2}, [0.4, 0.25]),
        ({"top_k": 1}, [1.0]),
        ({"top_k": 600}, [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]),
        ({"top_p": 0.39}, [0.4]),
        ({"top_p": 0.41}, [0.4, 0.25]),
        ({"top_p": 0.85}, [0.4, 0.25, 0.15, 0.1]),
        ({"top_p": 1e-6}, [0.4]),
        ({"min_p": 0.3}, [0.4, 0.25, 0.15]),
        ({"min_p": 0.2, "top_k": 4, "top_p": 0.5}, [0.4, 0.25]),
        ({"top_k": 2, "top_p": 0.6}, [0.4]),  # top_p counts what top_k has left
        ({"logit_bias": {0: -100.0}}, [0.0, 0.25, 0.15, 0.1, 0.06, 0.04]),
    ],
)
def test_draws_follow_the_filtered_distribution(
    options: dict[str, Any], expected: list[float], make_slot: MakeSlot
) -> None:
    frequencies = draw_many(make_slot, LOGITS, temperature=1.0, **options)
    wanted = torch.zeros(6)
    wanted[: len(expected)] = torch.tensor(expected)
    assert_close(frequencies, wanted / wanted.sum(), atol=0.04, rtol=0)
    assert (frequencies[wanted == 0] == 0).all()


def test_temperature_sharpens(make_slot: MakeSlot) -> None:
    frequencies = draw_many(make_slot, LOGITS, temperature=0.5)
    expected = torch.softmax(LOGITS / 0.5, 0)
    assert_close(frequencies, expected, atol=0.04, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1e-30])
def test_no_temperature_takes_the_likeliest(temperature: float, make_slot: MakeSlot) -> None:
    tokens = sample(WIDE.clone(), [make_slot(temperature=temperature) for _ in WIDE])
    assert [t.token_ids[0] for t in tokens] == WIDE.argmax(1).tolist()


@examples(60)
@given(
    seed=st.integers(0, 2**31),
    vocab_size=st.sampled_from([2, 127, 128, 129, 1000]),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    top_p=st.floats(0.01, 1.0),
    top_k=st.integers(0, 1000),
    min_p=st.floats(0.0, 1.0),
)
def test_filters_agree_with_a_full_sort(
    seed: int, vocab_size: int, scale: float, top_p: float, top_k: int, min_p: float
) -> None:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * scale
    kept = reference_support(logits, top_p, top_k, min_p)
    slots = [
        Slot(SlotStart(0, (1,), 1, (), (), SamplingParams(9, 1.0, top_p, top_k, min_p), seed=i))
        for i in range(20)
    ]
    for token in sample(logits.repeat(20, 1), slots):
        assert token.token_ids[0] in kept


def reference_support(logits: torch.Tensor, top_p: float, top_k: int, min_p: float) -> set[int]:
    """The tokens that may be drawn, by sorting all; a hair wider than exact at the edges."""
    probabilities = torch.softmax(logits.double(), 0)
    mask = probabilities >= min_p * probabilities.max() * (1 - 1e-5)
    if 0 < top_k < len(logits):
        mask &= probabilities >= probabilities.topk(top_k).values[-1] * (1 - 1e-5)
    kept = torch.where(mask, probabilities, 0)
    ordered, _ = (kept / kept.sum()).sort(descending=True)
    last = int((ordered.cumsum(0) < top_p + 1e-5).sum().clamp(max=len(ordered) - 1))
    mask &= kept / kept.sum() >= ordered[last] * (1 - 1e-5)
    return set(mask.nonzero().flatten().tolist())


def test_neighbours_do_not_change_a_draw(make_slot: MakeSlot) -> None:
    options: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 2000, "seed": 7, "logprobs": 2},
    ]
    alone = [
        sample(row.clone().unsqueeze(0), [make_slot(**o)])[0]
        for row, o in zip(WIDE, options, strict=True)
    ]
    assert sample(WIDE.clone(), [make_slot(**o) for o in options]) == alone


def test_the_draw_depends_on_seed_and_position(make_slot: MakeSlot) -> None:
    def draws(seed: int | None) -> list[int]:
        slots = [make_slot((1,), [1] * i, temperature=1.0, seed=seed) for i in range(20)]
        return [t.token_ids[0] for t in sample(WIDE[0].repeat(20, 1) / 4, slots)]

    assert draws(5) == draws(5)
    assert len(set(draws(5))) > 10
    assert draws(5) != draws(6)
    assert draws(None) != draws(None)


def test_logprobs_are_the_models_own(make_slot: MakeSlot) -> None:
    expected = torch.log_softmax(WIDE[0], 0)
    slot = make_slot(temperature=0.3, top_k=3, seed=1, logit_bias={17: 100.0}, logprobs=20)
    [token] = sample(WIDE[:1].clone(), [slot])
    assert token.token_ids == (17,)
    assert token.logprobs is not None
    [logprob] = token.logprobs
    assert logprob.logprob == pytest.approx(float(expected[17]), abs=1e-5)
    values, ids = expected.topk(20)
    assert [i for i, _ in logprob.top] == ids.tolist()
    assert [x for _, x in logprob.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_zero_logprobs_give_the_chosen_one_only(make_slot: MakeSlot) -> None:
    [token] = sample(LOGITS.unsqueeze(0).clone(), [make_slot(logprobs=0)])
    assert token.logprobs is not None
    [logprob] = token.logprobs
    assert logprob.top == ()
    assert logprob.logprob == pytest.approx(float(PROBABILITIES[0].log()), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"presence_penalty": 1.0}, [0.0, -1.5, 0.5, 0.8]),
        ({"frequency_penalty": 0.5}, [0.0, -1.0, 0.5, 0.8]),
        ({"repetition_penalty": 2.0}, [0.5, -1.0, 0.5, 0.4]),
        ({"logit_bias": {2: 1.5}}, [1.0, -0.5, 2.0, 0.8]),
    ],
)
def test_penalties(options: dict[str, Any], expected: list[float], make_slot: MakeSlot) -> None:
    """Prompt 3, answer 0 0 1: presence and frequency count the answer alone."""
    logits = torch.tensor([1.0, -0.5, 0.5, 0.8])
    options |= {"prompt": (3,), "generated": (0, 0, 1), "temperature": 1.0}
    frequencies = draw_many(make_slot, logits, **options)
    assert_close(frequencies, torch.tensor(expected).softmax(0), atol=0.04, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_give_no_token_and_cost_no_neighbour(
    temperature: float, make_slot: MakeSlot
) -> None:
    logits = LOGITS.repeat(3, 1)
    logits[1, 3] = float("nan")
    slots = [make_slot(temperature=temperature, seed=seed) for seed in range(3)]
    alone = [sample(LOGITS.unsqueeze(0).clone(), [slot])[0] for slot in slots]
    assert sample(logits, slots) == [alone[0], Sampled(()), alone[2]]


def test_no_row_is_no_token() -> None:
    assert sample(torch.empty(0, 50), []) == []


def test_a_mask_leaves_what_it_allows_to_its_own_row(make_slot: MakeSlot) -> None:
    mask = np.array([0b100110], np.int32)
    slots = [make_slot(temperature=1.0, seed=seed, logprobs=1) for seed in range(200)]
    sampled = sampler.sample(
        Logits(LOGITS.repeat(200, 1)), slots, dict.fromkeys(range(0, 200, 2), mask)
    )
    assert {each.token_ids[0] for each in sampled[::2]} == {1, 2, 5}
    assert {each.token_ids[0] for each in sampled[1::2]} == set(range(6))
    # The log-probabilities are the model's own, mask or not.
    assert {each.logprobs[0].top[0][0] for each in sampled if each.logprobs} == {0}


_HISTORY = {"prompt": (10, 13, 1, 13), "generated": (16, 16, 4, 19, 16)}


def test_counts_follow_a_list_that_is_cut_and_grows(make_slot: MakeSlot) -> None:
    counts = make_slot(frequency_penalty=1.0, **_HISTORY).counts
    history = [*_HISTORY["prompt"], *_HISTORY["generated"]]

    def counted(token_ids: list[int]) -> dict[int, float]:
        ids, times = counts.of(token_ids)
        return dict(zip(ids.tolist(), times.tolist(), strict=True))

    assert counted(history) == {16: 3.0, 4: 1.0, 19: 1.0}
    many = [*history, *range(100, 300)]
    assert counted(many) == {16: 3.0, 4: 1.0, 19: 1.0, **dict.fromkeys(range(100, 300), 1.0)}
    assert counted(history[:-2]) == {16: 2.0, 4: 1.0}
