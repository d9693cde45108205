"""The native engine on the CUDA backend: scheduler, chunks, prefix cache and draws together."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.engines.native.cuda.kernel_fixtures import DEVICE, IS_GPU, ON_GPU_ONLY, model_config

from engines.base import EngineRequest, SamplingParams, TokenEvent  # isort: skip
from engines.native.backends.base import Capacity  # isort: skip
from engines.native.backends.cuda.backend import CudaBackend  # isort: skip
from engines.native.backends.cuda.random_model import random_weights  # isort: skip
from engines.native.backends.cuda.reference import forward_reference  # isort: skip
from engines.native.backends.cuda.shape import Shape  # isort: skip
from engines.native.config import NativeConfig  # isort: skip
from engines.native.core import EngineCore, assemble_core  # isort: skip

MARGIN = 0.15  # of logits of about unit variance: a choice nearer than this may go either way
LENGTHS = [1, 300, 700, 40] if IS_GPU else [5]
NUM_TOKENS = 48 if IS_GPU else 2
CHUNK = 256 if IS_GPU else 8
CONFIG = model_config()
WEIGHTS = random_weights(CONFIG, 1024 if IS_GPU else 64, DEVICE)


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    capacity = Capacity(num_blocks=400 if IS_GPU else 32, block_size=16, max_model_len=1024)
    if not IS_GPU:
        capacity = Capacity(num_blocks=32, block_size=16, max_model_len=64)
    cache = torch.zeros(
        (1, capacity.num_blocks, 16 * 2 * CONFIG.kv_size), dtype=torch.bfloat16, device=DEVICE
    )
    return CudaBackend(CONFIG, WEIGHTS, cache, capacity, max_num_seqs=4, max_num_tokens=CHUNK)


def make_core(backend: CudaBackend, *, is_overlapped: bool = True) -> EngineCore:
    config = NativeConfig(
        Path(), dtype="bfloat16", max_num_seqs=4, max_num_batched_tokens=CHUNK,
        overlap_steps=is_overlapped,
    )  # fmt: skip
    return assemble_core(config, backend, CONFIG.sliding_window, CONFIG.vocab_size)


def generate(
    core: EngineCore, prompts: list[list[int]], **sampling: object
) -> tuple[list[list[int]], list[TokenEvent]]:
    params = SamplingParams(max_tokens=NUM_TOKENS, **sampling)  # type: ignore[arg-type]
    sequences = [
        core.scheduler.add(EngineRequest(str(i), tuple(prompt), params))
        for i, prompt in enumerate(prompts)
    ]
    events = []
    while core.has_work:
        for _, event in core.step():
            assert isinstance(event, TokenEvent), event
            events.append(event)
    return [s.token_ids[s.num_prompt_tokens :] for s in sequences], events


def random_prompts(seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, CONFIG.vocab_size, (n,), generator=generator).tolist() for n in LENGTHS
    ]


@pytest.mark.parametrize("is_overlapped", [False, True] if IS_GPU else [True])
def test_greedy_answers_are_the_models(backend: CudaBackend, is_overlapped: bool) -> None:
    prompts = random_prompts(1)
    answers, _ = generate(make_core(backend, is_overlapped=is_overlapped), prompts, temperature=0)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == NUM_TOKENS
        ids = torch.tensor(prompt + answer[:-1], device=DEVICE)
        empty = torch.zeros(
            (0, CONFIG.num_key_value_heads, CONFIG.head_dim), dtype=torch.float64, device=DEVICE
        )
        past = [(empty, empty) for _ in CONFIG.layer_types]
        logits = forward_reference(Shape(CONFIG), WEIGHTS, ids, past).logits[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(answer, device=DEVICE)[:, None]).squeeze(1)
        short = (logits.amax(1) - chosen).cpu()
        # An expert chosen the other way moves a row by more: some rows may, most may not.
        assert float((short < MARGIN).float().mean()) >= 0.9


@ON_GPU_ONLY
def test_a_prompt_met_before_gives_the_same_answer(backend: CudaBackend) -> None:
    core, prompts = make_core(backend), random_prompts(2)[:2]
    first, _ = generate(core, prompts, temperature=0)
    again, events = generate(core, prompts, temperature=0)
    assert again == first
    assert max(event.num_cached_tokens for event in events) >= 16


@ON_GPU_ONLY
def test_a_seed_draws_the_same_whoever_runs_beside(backend: CudaBackend) -> None:
    prompt = random_prompts(3)[0]
    alone, _ = generate(make_core(backend), [prompt], temperature=1.0, seed=7)
    again, _ = generate(make_core(backend), [prompt], temperature=1.0, seed=7)
    other, _ = generate(make_core(backend), [prompt], temperature=1.0, seed=8)
    assert alone == again
    assert alone != other


@ON_GPU_ONLY
def test_logprobs_are_those_of_the_logits(backend: CudaBackend) -> None:
    prompt = random_prompts(4)[0]
    _, events = generate(make_core(backend), [prompt], temperature=0, logprobs=3)
    for event in events:
        assert event.logprobs is not None
        (logprob,) = event.logprobs
        assert logprob.token_id == event.token_ids[0] == logprob.top[0][0]
        assert math.isclose(logprob.logprob, logprob.top[0][1])
        assert sum(math.exp(p) for _, p in logprob.top) <= 1.0


@ON_GPU_ONLY
def test_a_bias_and_a_filter_decide(backend: CudaBackend) -> None:
    prompt = random_prompts(5)[0]
    forced, _ = generate(make_core(backend), [prompt], temperature=1.0, logit_bias={3: 1000.0})
    assert forced == [[3] * NUM_TOKENS]
    best, _ = generate(make_core(backend), [prompt], temperature=0)
    narrow, _ = generate(make_core(backend), [prompt], temperature=1.0, top_k=1)
    assert narrow == best
    nucleus, _ = generate(make_core(backend), [prompt], temperature=1.0, top_p=1e-6)
    assert nucleus == best
