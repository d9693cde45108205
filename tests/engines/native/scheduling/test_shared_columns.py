"""Rows in which many tokens share a column are sampled as the whole vocabulary is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engines.native.backends.base import Sampled
from engines.native.host import sampler
from engines.native.host.slots import Columns, Logits, Slot
from tests.close import assert_close

MakeSlot = Callable[..., Slot]


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.0, "logprobs": 2}])
@pytest.mark.parametrize(
    ("shared", "expected"), [(-1.0, 3), (5.0, 1), (2.0, 1), (float("nan"), None)]
)
def test_tokens_that_share_a_column_are_chosen_as_if_each_had_its_own(
    options: dict[str, Any], shared: float, expected: int | None, make_slot: MakeSlot
) -> None:
    """Tokens 1, 2, 4 and 5 of six share a column; of tokens that score alike the first wins."""
    logits = Logits(torch.tensor([[0.0, shared, 2.0]]), Columns(torch.tensor([0, 1, 3]), 1, 6))
    spread = torch.tensor([[0.0, shared, shared, 2.0, shared, shared]])
    assert_close(logits.spread(), spread, atol=0, rtol=0)
    slot = make_slot(**options)
    tokens = () if expected is None else (expected,)
    assert sampler.sample(logits, [slot])[0].token_ids == tokens


def _shared_logits() -> Logits:
    """Scores of a vocabulary of which every third token has a column of its own."""
    token_ids = torch.cat([torch.tensor([0]), torch.arange(10, 5000, 3)])
    values = torch.randn(1, len(token_ids), generator=torch.Generator().manual_seed(2)) * 2
    return Logits(values, Columns(token_ids, 0, 5100))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("shared", [-60.0, 0.0, 3.0])
def test_a_draw_from_shared_columns_is_the_one_from_the_whole_vocabulary(
    shared: float, temperature: float, make_slot: MakeSlot
) -> None:
    logits = _shared_logits()
    logits.values[0, 0] = shared
    slots = [make_slot(temperature=temperature, seed=seed) for seed in range(100)]
    whole = logits.spread().repeat(len(slots), 1)
    together = Logits(logits.values.repeat(len(slots), 1), logits.columns)
    assert sampler.sample(together, slots) == sampler.sample(Logits(whole), slots)


@pytest.mark.parametrize(
    "filters",
    [
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"top_k": 20},
        {"top_k": 2_000},
        {"top_k": 4_000},
        {"min_p": 0.02},
        {"top_k": 1_500, "top_p": 0.7, "min_p": 0.001},
    ],
)
@pytest.mark.parametrize("shared", [-60.0, -3.0, 0.0, 3.0, 9.0])
def test_filters_of_shared_columns_leave_what_they_leave_of_the_whole_vocabulary(
    shared: float, filters: dict[str, Any], make_slot: MakeSlot
) -> None:
    logits = _shared_logits()
    logits.values[0, 0] = shared
    slots = [make_slot(temperature=1.3, seed=seed, **filters) for seed in range(50)]
    whole = logits.spread().repeat(len(slots), 1)
    together = Logits(logits.values.repeat(len(slots), 1), logits.columns)
    assert sampler.sample(together, slots) == sampler.sample(Logits(whole), slots)


@pytest.mark.parametrize("num_top", [0, 1, 3, 6])
@pytest.mark.parametrize("of_shared", [-9.0, 1.5, 9.0])
def test_log_probabilities_from_shared_columns_are_those_of_the_whole_vocabulary(
    num_top: int, of_shared: float, make_slot: MakeSlot
) -> None:
    """Of tokens with a column of their own and of those that share one, among the likeliest or
    not."""
    columns = Columns(torch.tensor([0, 1, 3]), 1, 6)
    logits = Logits(torch.tensor([[0.0, of_shared, 2.0]]).repeat(40, 1), columns)
    slots = [make_slot(temperature=3.0, seed=seed, logprobs=num_top) for seed in range(40)]
    expected = logits.spread()[0].log_softmax(0)
    for sampled in sampler.sample(logits, slots):
        [told] = sampled.logprobs or ()
        assert told.token_id == sampled.token_ids[0]
        assert told.logprob == pytest.approx(float(expected[told.token_id]), abs=1e-5)
        values = [value for _, value in told.top]
        assert values == pytest.approx(expected.topk(num_top).values.tolist(), abs=1e-5)
        assert values == pytest.approx([float(expected[i]) for i, _ in told.top], abs=1e-5)
        assert len({i for i, _ in told.top}) == num_top


def test_neighbours_do_not_change_a_draw_from_shared_columns(make_slot: MakeSlot) -> None:
    options: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 7},
        {"temperature": 1.0, "seed": 8, "logprobs": 2},
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 9},
        {"temperature": 1.0, "seed": 7, "logit_bias": {12: 4.0}},
    ]
    logits = _shared_logits()

    def draw(some: list[dict[str, Any]]) -> list[Sampled]:
        rows = Logits(logits.values.repeat(len(some), 1), logits.columns)
        return sampler.sample(rows, [make_slot(**one) for one in some])

    assert draw(options) == [token for one in options for token in draw([one])]


@pytest.mark.parametrize("bad", [0, 1])
def test_logits_that_are_no_numbers_cost_one_of_two_that_are_chosen_differently(
    bad: int, make_slot: MakeSlot
) -> None:
    one = _shared_logits()
    logits = Logits(one.values.repeat(2, 1), one.columns)
    logits.values[bad, 5] = float("nan")
    slots = [make_slot(temperature=1.0), make_slot(temperature=1.0, logit_bias={12: 4.0})]
    sampled = sampler.sample(logits, slots)
    assert [len(each.token_ids) for each in sampled] == [0, 1][:: 1 if bad == 0 else -1]


def test_a_mask_reaches_tokens_that_share_a_column(make_slot: MakeSlot) -> None:
    logits = Logits(torch.tensor([[0.0, 9.0, 2.0]]), Columns(torch.tensor([0, 1, 3]), 1, 6))
    mask = np.array([0b011001], np.int32)
    [sampled] = sampler.sample(logits, [make_slot()], {0: mask})
    assert sampled.token_ids == (4,)


_SHARERS = {1: 2.5, 2: -3.0, 3: 0.5}  # tokens that share the column of token 0
_HISTORY = {"prompt": (10, 13, 1, 13), "generated": (16, 16, 4, 19, 16)}


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {12: 4.0, 13: -2.0, 5000: 3.0}},
        {"logit_bias": {0: 5.0}},  # the token whose column the others share
        {"logit_bias": {0: -100.0, **_SHARERS}},
        {"presence_penalty": 0.7, "frequency_penalty": 0.4},
        {"repetition_penalty": 1.3},
        {"presence_penalty": -0.7, "repetition_penalty": 0.6, "logit_bias": _SHARERS},
        {"frequency_penalty": 0.5, "top_p": 0.8, "top_k": 900, "min_p": 0.001},
    ],
)
@pytest.mark.parametrize("shared", [-60.0, 0.0, 6.0])
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_biased_rows_of_shared_columns_are_sampled_as_the_whole_vocabulary_is(
    options: dict[str, Any], shared: float, temperature: float, make_slot: MakeSlot
) -> None:
    logits = _shared_logits()
    logits.values[0, 0] = shared
    options = {**options, **_HISTORY, "temperature": temperature, "logprobs": 3}
    slots = [make_slot(seed=seed, **options) for seed in range(20)]
    together = Logits(logits.values.repeat(len(slots), 1), logits.columns)
    found = sampler.sample(together, slots)
    whole = sampler.sample(Logits(logits.spread().repeat(len(slots), 1)), slots)
    assert [each.token_ids for each in found] == [each.token_ids for each in whole]
    for one, other in zip(found, whole, strict=True):
        [mine], [reference] = one.logprobs or (), other.logprobs or ()
        assert mine.logprob == pytest.approx(reference.logprob, abs=1e-5)
        values = [value for _, value in mine.top]
        assert values == pytest.approx([value for _, value in reference.top], abs=1e-5)


def test_a_bias_of_every_sharing_token_is_applied_too(make_slot: MakeSlot) -> None:
    """No token is left to stand for the others."""
    logits = Logits(torch.tensor([[0.0, 1.0, 0.5]]), Columns(torch.tensor([0, 1, 3]), 1, 5))
    slot = make_slot(temperature=0.0, logit_bias={1: -5.0, 2: 3.0, 4: 2.0})
    assert sampler.sample(logits, [slot])[0].token_ids == (2,)


def test_neighbours_do_not_change_a_biased_draw(make_slot: MakeSlot) -> None:
    options: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 7, "logit_bias": {1: 4.0, 5001: 1.0}, "logprobs": 1},
        {"temperature": 1.0, "seed": 8, "presence_penalty": 1.0, **_HISTORY},
        {"temperature": 1.0, "seed": 9, "repetition_penalty": 1.4, "top_p": 0.5, **_HISTORY},
        {"temperature": 1.0, "seed": 10, "logprobs": 2},
    ]
    logits = _shared_logits()

    def draw(some: list[dict[str, Any]]) -> list[Sampled]:
        rows = Logits(logits.values.repeat(len(some), 1), logits.columns)
        return sampler.sample(rows, [make_slot(**one) for one in some])

    assert draw(options) == [token for one in options for token in draw([one])]
    assert draw(options[::-1]) == draw(options)[::-1]


def test_only_rows_that_cannot_share_are_spread(
    make_slot: MakeSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of the whole vocabulary is what penalties used to cost."""
    slots = [
        make_slot(temperature=1.0, seed=i, frequency_penalty=0.5, logit_bias={1: 2.0}, **_HISTORY)
        for i in range(4)
    ]
    logits = _shared_logits()
    monkeypatch.setattr(Logits, "spread", None)
    found = sampler.sample(Logits(logits.values.repeat(4, 1), logits.columns), slots)
    assert all(len(each.token_ids) == 1 for each in found)


def test_guesses_are_counted_as_the_tokens_they_become(make_slot: MakeSlot) -> None:
    """A sequence with drafts draws what it draws token by token, penalties and seed included."""
    options: dict[str, Any] = {
        "temperature": 0.9, "seed": 3, "frequency_penalty": 0.8, "repetition_penalty": 1.2,
        **_HISTORY,
    }  # fmt: skip
    logits, num_steps = _shared_logits(), 4
    one_by_one, alone = make_slot(**options), list[int]()
    for _ in range(num_steps):
        [sampled] = sampler.sample(Logits(logits.values.clone(), logits.columns), [one_by_one])
        one_by_one.token_ids += sampled.token_ids
        alone += sampled.token_ids
    rows = Logits(logits.values.repeat(num_steps, 1), logits.columns)
    drafting = make_slot(**options)
    found = sampler.verify(rows, drafting, tuple(alone[:-1]))
    assert list(found.token_ids) == alone
    drafting.token_ids += found.token_ids[:1]  # the others are computed again
    wrong = sampler.verify(rows, drafting, (alone[1], 19, 19))
    assert list(wrong.token_ids[:2]) == alone[1:3]
