"""Answers that are computed again where equal requests are to get equal bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.base import EngineRequest, SamplingParams, TokenEvent, TokenLogprob
from engines.native.backends.base import Row
from engines.native.backends.cuda.passes.replay import cheapest_parts, equal_parts, joined
from engines.native.loop.core import EngineCore
from tests.engines.native.cuda.kernels.kernel_fixtures import (
    DEVICE,
    IS_GPU,
    ON_GPU_ONLY,
    model_config,
)

from tools.benchmarks.random_model import random_weights  # isort: skip
from tests.engines.native.cuda.engine_case import EngineCase, finish  # isort: skip

LENGTHS = [40, 300, 700, 3] if IS_GPU else [5]
NUM_TOKENS = 60 if IS_GPU else 4
CUTS = (1, 20, 47, 59) if IS_GPU else (2,)

Bits = list[TokenLogprob]  # log-probabilities tell logits apart that differ in one bit


def test_a_prompt_is_prefilled_and_an_answer_decoded() -> None:
    """A prompt of 4 tokens in slot 0, of 9 in slot 1."""
    rows = (
        Row(0, 2, 7, True, is_masked=True),  # both of them, the last to be sampled after
        Row(1, 5, 9, True),  # a prompt's end
        Row(2, 0, 3, False),  # a prompt's part
        Row(3, 6, 8, False),  # an answer's part
        Row(4, 8, 9, True, drafts=(5, 6)),
    )
    prompts = {0: 4, 1: 9, 2: 9, 3: 4, 4: 8}
    prefilled, replayed, decoded = equal_parts(rows, prompts.__getitem__)
    assert prefilled.rows == [Row(0, 2, 4, False, is_masked=True), rows[1], rows[2]]
    assert prefilled.indices == [0, 1, 2]
    places = [(row.slot, row.start, row.end, row.is_last) for row in replayed]
    assert places == [(0, 4, 5, False), (0, 5, 6, False), (3, 6, 7, False), (3, 7, 8, False)]
    assert decoded.rows == [Row(0, 6, 7, True, is_masked=True), rows[4]]
    assert decoded.indices == [0, 4]


def test_one_token_is_decoded_whatever_it_is_of_where_bits_may_differ() -> None:
    rows = (Row(0, 2, 7, True), Row(1, 3, 4, True), Row(2, 3, 4, False))
    assert equal_parts(rows[1:2], lambda slot: 4).prefilled.rows == [rows[1]]
    prefilled, replayed, decoded = cheapest_parts(rows)
    assert (prefilled.indices, replayed, decoded.indices) == ([0, 2], [], [1])


def test_rows_that_decode_join_a_chunk_with_room_for_them() -> None:
    rows = (Row(0, 8, 9, True), Row(1, 0, 5, False), Row(2, 30, 31, True))
    parts = cheapest_parts(rows)
    assert joined(parts, 6) == parts
    prefilled, replayed, decoded = joined(parts, 7)
    assert prefilled.rows == [rows[1], rows[0], rows[2]]
    assert (prefilled.indices, replayed, decoded.rows) == ([1, 0, 2], [], [])
    alone = cheapest_parts((rows[0], rows[2]))
    assert joined(alone, 8192) == alone


def test_verified_rows_are_decoded_apart() -> None:
    parts = cheapest_parts((Row(1, 0, 5, False), Row(0, 8, 9, True, drafts=(4,))))
    assert joined(parts, 8192) == parts


def test_rows_of_any_depth_join_a_chunk() -> None:
    rows = (Row(1, 0, 5, False), Row(0, 100_000, 100_001, True))
    assert joined(cheapest_parts(rows), 8192).prefilled.rows == [*rows]


def answered(core: EngineCore, requests: list[EngineRequest]) -> list[Bits]:
    """The tokens of each with their log-probabilities."""
    sequences = [core.scheduler.add(request) for request in requests]
    found: dict[int, Bits] = {id(sequence): [] for sequence in sequences}
    for sequence, event in finish(core):
        assert isinstance(event, TokenEvent), event
        found[id(sequence)] += event.logprobs or ()
    return [found[id(sequence)] for sequence in sequences]


@pytest.fixture(scope="module")
def weights() -> object:
    return random_weights(model_config(), 1024 if IS_GPU else 64, DEVICE)


@pytest.fixture
def case(weights: object) -> EngineCase:
    return invariant_case(weights, num_blocks=800 if IS_GPU else 32)


def invariant_case(weights: object, num_blocks: int) -> EngineCase:
    return EngineCase(
        model_config(), weights, num_blocks, 1024 if IS_GPU else 64,  # type: ignore[arg-type]
        max_num_seqs=8, chunk=256 if IS_GPU else 8, batch_invariant=True,
    )  # fmt: skip


def requests_of(case: EngineCase) -> list[EngineRequest]:
    """Greedy and drawn in turn."""
    return [
        EngineRequest(
            str(i),
            tuple(prompt),
            SamplingParams(NUM_TOKENS, temperature=0.8 * (i % 2), seed=i, logprobs=1),
        )
        for i, prompt in enumerate(case.prompts(1, LENGTHS))
    ]


@pytest.mark.parametrize(
    "is_cached", [False, True] if IS_GPU else [pytest.param(False, marks=pytest.mark.slow)]
)
def test_an_answer_goes_on_with_the_bits_it_had(case: EngineCase, is_cached: bool) -> None:
    """As after a restart: from its tokens, among others, in another batch."""
    requests = requests_of(case)
    whole = answered(case.core(is_cached=False), requests)
    core = case.core(is_cached=is_cached)
    for cut in CUTS:
        begun = [
            replace(request, generated_token_ids=tuple(bits.token_id for bits in answer[:cut]))
            for request, answer in zip(requests, whole, strict=True)
        ]
        assert answered(core, begun) == [answer[cut:] for answer in whole], cut


@ON_GPU_ONLY
def test_who_is_preempted_goes_on_with_the_bits_it_had(weights: object, case: EngineCase) -> None:
    requests = [
        replace(request, prompt_token_ids=tuple(prompt))
        for request, prompt in zip(requests_of(case), case.prompts(3, [70] * 4), strict=True)
    ]
    alone = [answered(case.core(is_cached=False), [request])[0] for request in requests]
    narrow = invariant_case(weights, num_blocks=58).core(is_cached=False)
    assert answered(narrow, requests) == alone
    assert narrow.scheduler.counters.num_preemptions


@ON_GPU_ONLY
def test_a_prompt_that_was_anothers_answer_gets_the_bits_of_a_prompt(case: EngineCase) -> None:
    request = requests_of(case)[0]
    core = case.core()
    [answer] = answered(core, [request])
    told = (*request.prompt_token_ids, *(bits.token_id for bits in answer))
    again = replace(request, prompt_token_ids=told)
    assert answered(core, [again]) == answered(case.core(is_cached=False), [again])
