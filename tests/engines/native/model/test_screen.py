"""A head that is sifted first gives the tokens of one that is computed whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engines.base import SamplingParams
from engines.native.backends.base import SlotStart
from engines.native.backends.cpu import screen
from engines.native.backends.cpu.layers import LateLogits, OutputHead
from engines.native.backends.cpu.layout import Slot
from engines.native.backends.cpu.sampler import sample
from engines.native.backends.cpu.screen import Screen

SCREENED = "engines.native.backends.cpu.layers.is_screened"


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _slot(**options: Any) -> Slot:
    sampling = SamplingParams(5, **{"temperature": 0.0, **options})
    return Slot(SlotStart(0, (1, 2, 3), 3, (), (), sampling, seed=7))


@pytest.mark.parametrize("hidden_size", [64, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_best_token_is_that_of_the_exact_scores(hidden_size: int, dtype: torch.dtype) -> None:
    """Rows are of very different lengths; one is zero, and those near the best all but equal."""
    hidden = _random(3, hidden_size)
    weight = _random(4000, hidden_size, seed=1) * _random(4000, 1, seed=2).exp()
    weight[7] = 0
    scores = hidden.double() @ weight.double().t()
    near = weight[scores.argmax(1)].repeat_interleave(10, dim=0)
    weight[1000 : 1000 + len(near)] = near * (1 + 0.001 * _random(len(near), hidden_size, seed=3))
    weight = weight.to(dtype)
    expected = hidden.double() @ weight.double().t()
    found = Screen(weight).best(hidden)
    assert found is not None
    assert found[0].tolist() == expected.argmax(1).tolist()
    np.testing.assert_allclose(found[1], expected.amax(1), rtol=1e-4)


def test_of_tokens_that_score_alike_the_first_is_best() -> None:
    weight = _random(500, 64)
    weight[400] = weight[300] = 2 * weight[200]
    found = Screen(weight).best(weight[200:201])
    assert found is not None
    assert found[0].tolist() == [300]


def test_a_head_whose_tokens_score_nearly_alike_is_computed_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SCREENED, lambda *_: True)
    weight = 1 + 1e-4 * _random(500, 64)
    hidden = torch.ones(1, 64)
    assert Screen(weight).best(hidden) is None
    [token], [score] = OutputHead(weight, torch.float32)(hidden).best()
    assert token == weight.double().sum(1).argmax()
    assert score == pytest.approx(float(weight[token].sum()), rel=1e-5)


@pytest.mark.parametrize("bad", ["hidden", "weight"])
def test_scores_that_are_no_numbers_give_no_token(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SCREENED, lambda *_: True)
    weight, hidden = _random(500, 64), _random(2, 64, seed=1)
    (weight if bad == "weight" else hidden)[1, 5] = float("nan")
    sampled = sample(OutputHead(weight, torch.float32)(hidden), [_slot(), _slot()])
    assert [len(each.token_ids) for each in sampled] == ([0, 0] if bad == "weight" else [1, 0])


@pytest.mark.parametrize("num_shared", [1, 300], ids=["each its own", "many share a column"])
@pytest.mark.parametrize(
    "options",
    [
        [{}],
        [{}, {}],
        [{"logprobs": 3}],
        [{"logit_bias": {3: 100.0}}],
        [{"temperature": 1.0}],
        [{"temperature": 1.0, "top_p": 0.3}, {}],
    ],
    ids=str,
)
def test_sampling_is_that_of_the_whole_head(
    options: list[dict[str, Any]], num_shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = _random(500, 64)
    weight[-num_shared:] = weight[-1]
    hidden, slots = _random(len(options), 64, seed=1), [_slot(**one) for one in options]
    expected = sample(OutputHead(weight, torch.float32)(hidden), slots)
    monkeypatch.setattr(SCREENED, lambda *_: True)
    logits = OutputHead(weight, torch.float32)(hidden)
    assert isinstance(logits, LateLogits)
    assert sample(logits, slots) == expected


@pytest.mark.parametrize(
    ("num_tokens", "hidden_size", "expected"),
    [
        (201_088, 256, True),
        (201_088, 2880, False),  # torch's kernel is slow where rows are long,
        (201_088, 100, False),  # and reads past the end of such a row
        (20_000, 256, False),  # a cache holds it
    ],
)
def test_a_head_is_screened_where_it_pays(
    num_tokens: int, hidden_size: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "has_bfloat16", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert screen.is_screened(num_tokens, hidden_size) == expected
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert not screen.is_screened(num_tokens, hidden_size)
