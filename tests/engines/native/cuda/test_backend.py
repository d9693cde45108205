"""The native engine on the CUDA backend: scheduler, chunks, prefix cache and draws together."""

from __future__ import annotations

import math

import pytest

from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    ON_GPU_ONLY,
    model_config,
)

from tools.benchmarks.random_model import random_weights  # isort: skip
from engines.fields import RepetitionDetection  # isort: skip
from engines.prompt_logprobs import packed_in, unpacked  # isort: skip
from tests.engines.native.cuda.engine_case import MARGIN, EngineCase, generate  # isort: skip

# Slow through Triton's interpreter, by which the kernels' own tests run them by default.
LENGTHS = [1, 300, 700, 40] if IS_GPU else [5]
NUM_TOKENS = 48 if IS_GPU else 2


@pytest.fixture(scope="module")
def case() -> EngineCase:
    config, longest = model_config(), 1024 if IS_GPU else 64
    weights = random_weights(config, longest, DEVICE)
    return EngineCase(config, weights, 400 if IS_GPU else 32, longest, chunk=256 if IS_GPU else 8)


@pytest.mark.parametrize(
    "is_overlapped", [False, True] if IS_GPU else [pytest.param(True, marks=pytest.mark.slow)]
)
def test_greedy_answers_are_the_models(case: EngineCase, is_overlapped: bool) -> None:
    prompts = case.prompts(1, LENGTHS)
    core = case.core(is_overlapped=is_overlapped)
    answers, _ = generate(core, prompts, NUM_TOKENS, temperature=0)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == NUM_TOKENS
        assert case.share_greedy(prompt, answer) >= 0.9


@pytest.mark.parametrize("is_cached", [True] if not IS_GPU else [True, False])
def test_a_prompt_has_the_log_probabilities_of_the_models_logits(
    case: EngineCase, is_cached: bool
) -> None:
    prompts, num_top = case.prompts(9, LENGTHS if IS_GPU else [11]), 2
    core = case.core(is_cached=is_cached)
    for _ in range(2 if IS_GPU else 1):  # again: with the prompt in the cache
        _, events = generate(core, prompts, 1, temperature=0, prompt_logprobs=num_top)
        told = {sum(len(part.ranks) for part in packed_in(e) or ()): e for e in events}
        for prompt in prompts:
            event = told[4 * (len(prompt) - 1)]
            assert event.num_cached_tokens == 0
            found = [*unpacked(packed_in(event) or (), prompt)]
            expected = case.log_probabilities(prompt)
            near = [
                abs(token.logprob - float(row[token.token_id])) < MARGIN
                and all(abs(value - float(row[id])) < MARGIN for id, value in token.top)
                and abs(token.top[0][1] - float(row.max())) < MARGIN
                for token, row in zip(found, expected[:-1], strict=True)
            ]
            assert sum(near) >= 0.9 * len(near)  # an expert chosen the other way moves a row


def test_an_answer_that_repeats_itself_ends(case: EngineCase) -> None:
    asked = {"logit_bias": {3: 1000.0}, "repetition_detection": RepetitionDetection(1, 2)}
    answers, _ = generate(case.core(), case.prompts(6, [1]), NUM_TOKENS + 8, **asked)
    assert answers == [[3, 3]]


@ON_GPU_ONLY
def test_a_prompt_met_before_gives_the_same_answer(case: EngineCase) -> None:
    core, prompts = case.core(), case.prompts(2, LENGTHS[:2])
    first, _ = generate(core, prompts, NUM_TOKENS, temperature=0)
    again, events = generate(core, prompts, NUM_TOKENS, temperature=0)
    assert again == first
    assert max(event.num_cached_tokens for event in events) >= 16


@ON_GPU_ONLY
def test_a_seed_draws_the_same_whoever_runs_beside(case: EngineCase) -> None:
    prompt = case.prompts(3, LENGTHS)[0]
    alone, _ = generate(case.core(), [prompt], NUM_TOKENS, temperature=1.0, seed=7)
    again, _ = generate(case.core(), [prompt], NUM_TOKENS, temperature=1.0, seed=7)
    other, _ = generate(case.core(), [prompt], NUM_TOKENS, temperature=1.0, seed=8)
    assert alone == again
    assert alone != other


@ON_GPU_ONLY
def test_logprobs_are_those_of_the_logits(case: EngineCase) -> None:
    prompt = case.prompts(4, LENGTHS)[0]
    _, events = generate(case.core(), [prompt], NUM_TOKENS, temperature=0, logprobs=3)
    for event in events:
        assert event.logprobs is not None
        (logprob,) = event.logprobs
        assert logprob.token_id == event.token_ids[0] == logprob.top[0][0]
        assert math.isclose(logprob.logprob, logprob.top[0][1])
        assert sum(math.exp(p) for _, p in logprob.top) <= 1.0


@ON_GPU_ONLY
def test_a_bias_and_a_filter_decide(case: EngineCase) -> None:
    prompt = case.prompts(5, LENGTHS)[0]
    forced, _ = generate(case.core(), [prompt], NUM_TOKENS, temperature=1.0, logit_bias={3: 1000.0})
    assert forced == [[3] * NUM_TOKENS]
    best, _ = generate(case.core(), [prompt], NUM_TOKENS, temperature=0)
    narrow, _ = generate(case.core(), [prompt], NUM_TOKENS, temperature=1.0, top_k=1)
    assert narrow == best
    nucleus, _ = generate(case.core(), [prompt], NUM_TOKENS, temperature=1.0, top_p=1e-6)
    assert nucleus == best
