"""The fields of a request on the device, each and in pairs, against plain torch."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from engines.base import SamplingParams
from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, IS_GPU, ON_GPU_ONLY
from tests.engines.native.cuda.sampling.sampler_case import SamplerCase, adjusted, kept

from engines.native.backends.cuda.sampling.outcome import logprobs_of  # isort: skip

TOKEN_IDS, NUM_PROMPT_TOKENS = (5, 7, 7, 9, 7, 11, 11, 300), 4
FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.6},
    {"top_k": 12},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -0.9},
    {"logit_bias": {7: 2.5, 300: -1.0, 12: 4.0}},
]
PAIRS = [SamplingParams(1, **(a | b)) for a, b in combinations(FIELDS, 2)]
VOCAB_SIZE = 201_088 if IS_GPU else 320


def random_logits(num: int, scale: float = 1.5) -> torch.Tensor:
    torch.manual_seed(num)
    return (torch.randn(num, VOCAB_SIZE) * scale).to(DEVICE)


def test_each_pair_of_fields_leaves_what_plain_torch_leaves() -> None:
    """Adjusted logits bit by bit, and the tokens that stay in the draw."""
    logits = random_logits(len(PAIRS))
    case = SamplerCase(logits, PAIRS, TOKEN_IDS, NUM_PROMPT_TOKENS)
    found, floors = case.adjust(), case.floors()
    for row, params in enumerate(PAIRS):
        expected = adjusted(logits[row], params, TOKEN_IDS, NUM_PROMPT_TOKENS)
        assert torch.equal(found[row], expected), params
        assert torch.equal(found[row] >= floors[row], kept(expected, params)), params


@ON_GPU_ONLY
def test_draws_of_each_pair_follow_the_distribution() -> None:
    """Chi-square of 4,000 draws over 20 tokens, for all pairs at once."""
    torch.manual_seed(1)
    num, ids, num_prompt = 4000, (5, 7, 7, 9, 7, 11, 11), 4
    logits = torch.randn(20, device=DEVICE)
    for each in PAIRS:
        params = replace(each, logit_bias={n: v for n, v in each.logit_bias.items() if n < 20})
        case = SamplerCase(logits.expand(num, -1), [params], ids, num_prompt)
        case.adjust()
        case.floors()
        case.sampler.rows.generated.copy_(torch.arange(num))
        case.sampler.run(num)
        row = adjusted(logits, params, ids, num_prompt)
        shares = torch.where(kept(row, params), row.double() / params.temperature, -torch.inf)
        expected = (shares.softmax(0) * num).cpu()
        drawn = torch.bincount(case.sampler.rows.sampled.cpu(), minlength=20)
        assert not drawn[expected == 0].any(), params
        likely = expected > 5
        statistic = ((drawn - expected) ** 2 / expected)[likely].sum()
        assert statistic < 52, params  # 19 degrees of freedom: 1 of 10,000 right ones is above


def test_a_floor_does_not_depend_on_how_many_logits_are_near_it() -> None:
    """Equal ones stay together; 5,000 in a millionth of the row's range are told apart."""
    torch.manual_seed(2)
    near = torch.randn(5_000) * 1e-6
    near[0] = -1000.0
    logits = torch.stack((near, torch.full((5_000,), 2.5))).to(DEVICE)
    params = [SamplingParams(1, top_k=40), SamplingParams(1, top_p=0.5)]
    floors = SamplerCase(logits, params).floors()
    assert (logits >= floors[:, None]).sum(1).tolist() == [40, 5_000]


def test_what_a_mask_put_out_stays_out_of_every_filter() -> None:
    logits = random_logits(3)
    logits[:, ::2] = -1e30
    num_left = VOCAB_SIZE // 2
    params = [
        SamplingParams(1, top_k=num_left + 5),
        SamplingParams(1, top_p=0.7),
        SamplingParams(1),
    ]
    case = SamplerCase(logits, params)
    floors = case.floors()
    assert floors[0] < -5e29
    assert floors[2] < -5e29
    live = logits[1, 1::2]
    assert torch.equal(live >= floors[1], kept(live, params[1]))


def test_counts_follow_what_is_drawn_and_know_the_prompt() -> None:
    params = [SamplingParams(1, temperature=0.0, frequency_penalty=1.0, repetition_penalty=2.0)]
    case = SamplerCase(torch.zeros(1, VOCAB_SIZE, device=DEVICE), params, (5, 7), 2)
    for token in (7, 9, 9):
        case.sampler.rows.sampled.fill_(token)
        case.sampler.count(1)
    case.sampler.rows.sampled.fill_(-1)  # none was drawn
    case.sampler.count(1)
    case.sampler.logits.fill_(1.0)
    found = case.adjust()[0, [5, 7, 9, 10]]
    assert found.tolist() == [0.5, -0.5, -1.5, 1.0]


def test_log_probabilities_are_the_models_own() -> None:
    """The token's, and the likeliest in order, whatever bias and penalties make of the row."""
    shifting: dict[str, Any] = {"repetition_penalty": 1.4, "logit_bias": {300: 100.0}}
    params = [
        SamplingParams(1, logprobs=5),
        SamplingParams(1, logprobs=20, **shifting),
        SamplingParams(1),
        SamplingParams(1, logprobs=0, **shifting),
    ]
    logits = random_logits(len(params))
    case = SamplerCase(logits, params, TOKEN_IDS, NUM_PROMPT_TOKENS)
    copies = torch.empty_like(logits)
    for row in (1, 3):
        case.sampler.copies[row] = copies[row].data_ptr()
    case.sampler.find_tops(case.num)
    case.adjust()
    case.sampler.run(case.num)
    case.sampler.tell(case.num)
    tokens = case.sampler.rows.sampled.tolist()
    assert tokens[1] == tokens[3] == 300  # by its bias
    told = logprobs_of(tokens, case.sampler.told.cpu(), [each.logprobs for each in params])
    assert told[2] is None
    for row, each in enumerate(told):
        if each is None:
            continue
        expected = logits[row].double().log_softmax(0)
        best = expected.topk(params[row].logprobs or 0)
        assert each.token_id == tokens[row]
        assert abs(each.logprob - float(expected[tokens[row]])) < 1e-5
        assert [token for token, _ in each.top] == best.indices.tolist()
        values = torch.tensor([value for _, value in each.top], dtype=torch.float64)
        assert torch.allclose(values, best.values.cpu(), atol=1e-5)
