"""Steps that verify guesses: rows of one sequence beside each other."""

from __future__ import annotations

from math import isinf
from pathlib import Path

import numpy as np
import pytest
import torch

from engines.base import SamplingParams, TokenEvent, TokenLogprob
from engines.errors import EngineStartError
from engines.native.backends.base import Row
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.graphs.captured import step_sizes
from engines.native.backends.cuda.kernels import verify
from engines.native.backends.cuda.kernels.launch import launch
from engines.native.backends.cuda.sampling.outcome import num_accepted
from engines.native.backends.cuda.steps.buffers import Rows
from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    ON_GPU_ONLY,
    model_config,
    relative_error,
)

from tools.benchmarks.random_model import random_weights  # isort: skip
from engines.native.backends.cuda.steps.verify import (
    MAX_DRAFTS,
    Guesses,
    StepTime,
    VerifyStep,
    expanded,
)
from engines.native.config import NativeConfig, Speculation
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from tests.engines.native.cuda.reference import forward_reference

from tests.engines.native.cuda.steps.decode_case import DecodeCase  # isort: skip
from tests.engines.native.cuda.engine_case import EngineCase, finish, generate, submit  # isort: skip
from tests.engines.native.cuda.steps.test_decode import TIE, TOLERANCE  # isort: skip
from tests.engines.speculation import NGRAM

LENGTH = 300 if IS_GPU else 10


@pytest.mark.parametrize("num_guesses", [1, 7] if IS_GPU else [1])
def test_logits_after_guesses_are_those_of_the_model(num_guesses: int) -> None:
    config, num = model_config(), 1 + num_guesses
    case = DecodeCase(config, [LENGTH] * num, block_size=16)
    case.inputs.slots.fill_(int(case.inputs.slots[0]))
    case.inputs.positions.copy_(torch.arange(LENGTH, LENGTH + num))
    guesses = Guesses(num, DEVICE)
    drafts = tuple(range(3, 3 + num_guesses))
    guesses.packed.copy_(guesses.pack([Row(0, LENGTH, LENGTH + 1, True, drafts=drafts)]))
    last = case.slots.token_ids[int(case.inputs.slots[0])].item()
    ids = torch.tensor([int(last), *drafts], device=DEVICE)
    expected = forward_reference(case.shape, case.weights, ids, case.past(0))
    step = VerifyStep(
        case.shape, case.weights, case.cache, 16, num,
        CardChoices.of(DEVICE).decode(num, case.shape.config), case.slots, case.inputs,
        case.scratch, case.sampler.logits, guesses=guesses,
    )  # fmt: skip
    step.run()
    check_written(case, step, num)
    compared = [row for row in range(num) if float(expected.closest[row]) >= TIE]
    assert compared
    for row in compared:
        error = relative_error(case.sampler.logits[row], expected.logits[row])
        assert error < TOLERANCE, f"row {row}"


def check_written(case: DecodeCase, step: VerifyStep, num: int) -> None:
    """K/V are there before any row attends: the same bits that attending leaves."""
    slot = int(case.inputs.slots[0])
    layer = case.cache[0].view(len(case.cache[0]), 16, -1)
    at = torch.arange(LENGTH, LENGTH + num, device=DEVICE)
    blocks = case.slots.full_tables[slot][at // 16].long()  # the last layer's attention is full
    left = layer[blocks, at % 16].clone()
    layer[blocks, at % 16] = 0
    step.write_kv(1)
    assert torch.equal(layer[blocks, at % 16], left)
    assert left.abs().sum() > 0


@pytest.mark.parametrize(
    ("sampled", "kept"),
    [([5, 6, 7, 8], 8), ([5, 6, 1, 8], 1), ([4, 6, 7, 8], 4), ([5, -1, 7, 8], -1)],
)
def test_the_token_after_the_right_guesses_is_the_next_input(sampled: list[int], kept: int) -> None:
    rows, guesses = Rows(8, DEVICE), Guesses(8, DEVICE)
    drafted, plain = Row(2, 9, 10, True, drafts=(5, 6, 7)), Row(0, 3, 4, True)
    guesses.packed.copy_(guesses.pack([plain, drafted, plain]))
    rows.num_rows.fill_(6)
    rows.slots.copy_(torch.tensor([0, 2, 2, 2, 2, 1, 9, 9]))
    rows.sampled.copy_(torch.tensor([40, *sampled, 41, 9, 9]))
    inputs = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    launch(
        verify.accept_kernel, (8,), rows.sampled, guesses.token_ids, guesses.firsts, rows.slots,
        inputs, rows.num_rows, MOST=MAX_DRAFTS + 1, num_warps=1,
    )  # fmt: skip
    assert inputs.tolist() == [40, 41, kept]
    assert sampled[num_accepted(sampled, drafted.drafts)] == kept


def test_a_guess_is_a_row_at_the_next_position() -> None:
    rows = [Row(0, 3, 4, True), Row(2, 9, 10, True, drafts=(5, 6))]
    tokens, places = expanded(rows)
    assert [(row.slot, row.start, row.end) for row in tokens] == [
        (0, 3, 4), (2, 9, 10), (2, 10, 11), (2, 11, 12)
    ]  # fmt: skip
    assert places == [0, 1, 1, 1]


def test_a_step_of_more_rows_takes_longer_and_of_too_many_is_none() -> None:
    cost = StepTime(num_experts=32, top_k=4, max_rows=32)
    plain, drafted, full, most, more = (
        float(cost(sequences, np.array([drafts]))[0])
        for sequences, drafts in ((1, 0.0), (1, 7.0), (8, 0.0), (8, 24.0), (8, 25.0))
    )
    assert 1.8 < drafted / plain < 2.4  # measured: 4.1 ms and 1.9 ms
    assert drafted == full
    assert isinf(more)
    assert not isinf(most)


def test_one_size_of_step_where_neighbours_may_not_matter() -> None:
    sizes = step_sizes(20, 300, has_drafts=True, is_invariant=True)
    assert (sizes.decode, sizes.verify, sizes.prefill) == ([32], [32], [300])
    sizes = step_sizes(20, 300, has_drafts=True)
    assert sizes.decode == [1, 2, 4, 8, 16, 32]
    assert sizes.verify == [2, 4, 8, 16, 32, 64, 128]
    assert sizes.prefill == [64, 128, 256, 300]
    assert step_sizes(20, 300).verify == []


def test_the_cpu_cannot_keep_bits_among_neighbours() -> None:
    with pytest.raises(EngineStartError, match="only device cuda can keep that"):
        NativeConfig(Path(), batch_invariant=True)


@ON_GPU_ONLY
@pytest.mark.parametrize("speculation", ["none", NGRAM])
def test_the_same_bits_in_any_batch_where_that_is_asked_for(speculation: Speculation) -> None:
    """Log-probabilities tell logits apart that differ in one bit."""
    config = model_config()
    weights = random_weights(config, 1024, DEVICE)
    case = EngineCase(
        config, weights, 800, 1024, max_num_seqs=32, chunk=512, speculation=speculation,
        batch_invariant=True,
    )  # fmt: skip
    prompts = case.prompts(1, [40, 300, 700, 3, 129, 64] * 4)
    prompts[1] = prompts[1][:20] * 15
    sampling: dict[str, object] = {"temperature": 0.8, "seed": 5, "logprobs": 1}
    together = by_request(generate_events(case.core(is_cached=False), prompts, **sampling))
    for i in (0, 1, 2, 3, 5):
        alone = by_request(generate_events(case.core(is_cached=False), [prompts[i]], **sampling))
        assert alone["0"] == together[str(i)], f"prompt {i}"


def by_request(outcomes: list[tuple[Sequence, TokenEvent]]) -> dict[str, list[TokenLogprob]]:
    found: dict[str, list[TokenLogprob]] = {}
    for sequence, event in outcomes:
        found.setdefault(sequence.request.request_id, []).extend(event.logprobs or ())
    return found


def generate_events(
    core: EngineCore, prompts: list[list[int]], **sampling: object
) -> list[tuple[Sequence, TokenEvent]]:
    params = SamplingParams(max_tokens=60, **sampling)  # type: ignore[arg-type]
    for i, prompt in enumerate(prompts):
        submit(core, str(i), prompt, params)
    return [(sequence, event) for sequence, event in finish(core) if isinstance(event, TokenEvent)]


@ON_GPU_ONLY
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_greedy_answers_with_guesses_are_the_models(is_overlapped: bool) -> None:
    config = model_config()
    weights = random_weights(config, 1024, DEVICE)
    case = EngineCase(config, weights, 400, 1024, speculation=NGRAM)
    prompts = case.prompts(1, [1, 300, 40])
    prompts[1] = prompts[1][:20] * 15
    core = case.core(is_overlapped=is_overlapped)
    answers, _ = generate(core, prompts, 200, temperature=0)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == 200
        assert case.share_greedy(prompt, answer) >= 0.9
    again, _ = generate(case.core(is_overlapped=is_overlapped), prompts, 200, temperature=0)
    assert again == answers
