"""Answers do not depend on what else the engine does; every request gets one."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from engines.base import EngineRequest, FinishReason, TokenEvent
from engines.errors import PromptTooLong
from engines.native.loop.core import EngineCore
from tests.examples import examples

MakeCore = Callable[..., EngineCore]
MakeRequest = Callable[..., EngineRequest]
GreedyAnswer = Callable[[Sequence_[int], int], list[int]]
RunAll = Callable[..., dict[str, list[int]]]

LONG = [(7 * i) % 50 for i in range(45)]
PROMPTS = [LONG, LONG[:21], [3], [5, 6, 7, 8, 9], [*LONG[:40], 1, 2], [4] * 16]


@pytest.mark.parametrize("max_num_batched_tokens", [1, 3, 4, 7, 64, 512])
def test_chunk_size_changes_no_token(
    max_num_batched_tokens: int,
    make_core: MakeCore,
    make_request: MakeRequest,
    greedy_answer: GreedyAnswer,
    run_all: RunAll,
) -> None:
    core = make_core(max_num_batched_tokens=max_num_batched_tokens)
    core.scheduler.add(make_request(LONG, 20, request_id="a"))
    assert run_all(core) == {"a": greedy_answer(LONG, 20)}


@pytest.mark.parametrize("num_blocks", [24, 30, 41, 120])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 8])
def test_neighbours_and_preemptions_change_no_token(
    num_blocks: int,
    max_num_seqs: int,
    make_core: MakeCore,
    make_request: MakeRequest,
    greedy_answer: GreedyAnswer,
    run_all: RunAll,
) -> None:
    core = make_core(num_blocks=num_blocks, max_num_seqs=max_num_seqs)
    for i, prompt in enumerate(PROMPTS):
        core.scheduler.add(make_request(prompt, 25, request_id=str(i)))
    answers = run_all(core)
    assert answers == {str(i): greedy_answer(p, 25) for i, p in enumerate(PROMPTS)}
    if num_blocks == 24 and max_num_seqs == 8:
        assert core.stats().num_preemptions > 0


def test_seeded_sampling_survives_preemption_and_neighbours(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    def requests() -> list[EngineRequest]:
        return [
            make_request(p, 25, temperature=1.0, seed=i, request_id=str(i))
            for i, p in enumerate(PROMPTS)
        ]

    alone: dict[str, list[int]] = {}
    for request in requests():
        core = make_core()
        core.scheduler.add(request)
        alone |= run_all(core)
    crowded = make_core(num_blocks=24)
    for request in requests():
        crowded.scheduler.add(request)
    assert run_all(crowded) == alone
    assert crowded.stats().num_preemptions > 0


def test_prefix_hits_change_no_token_and_are_counted(
    make_core: MakeCore,
    make_request: MakeRequest,
    greedy_answer: GreedyAnswer,
    run_all: RunAll,
) -> None:
    core = make_core(num_blocks=200)
    core.scheduler.add(make_request(LONG, 6, request_id="first"))
    first = run_all(core)["first"]
    second = core.scheduler.add(make_request(LONG + first + [9], 6, request_id="second"))
    assert run_all(core) == {"second": greedy_answer(LONG + first + [9], 6)}
    # 45 + 6 tokens, of which the last was never computed: twelve whole blocks of 4.
    assert second.num_cached_tokens == 48
    stats = core.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (45 + 52, 48)
    assert (stats.prompt_tokens, stats.generated_tokens) == (45 + 52, 12)


def test_a_repeated_prompt_still_computes_a_token(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    core = make_core()
    for _ in range(2):
        sequence = core.scheduler.add(make_request(LONG[:16], 3))
        run_all(core)
    assert sequence.num_cached_tokens == 12


@pytest.mark.parametrize(
    ("changes", "cached"), [({}, 20), ({"cache_salt": "b"}, 0), ({"cache_salt": None}, 0)]
)
def test_prefixes_are_shared_under_one_salt_only(
    changes: dict[str, Any],
    cached: int,
    make_core: MakeCore,
    make_request: MakeRequest,
    run_all: RunAll,
) -> None:
    core = make_core()
    core.scheduler.add(make_request(LONG[:21], 3, cache_salt="a"))
    run_all(core)
    again = core.scheduler.add(make_request(LONG[:21], 3, **{"cache_salt": "a", **changes}))
    run_all(core)
    assert again.num_cached_tokens == cached


def test_without_prefix_caching_nothing_is_looked_up(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    core = make_core(is_prefix_caching=False)
    for _ in range(2):
        sequence = core.scheduler.add(make_request(LONG, 3))
        run_all(core)
    assert sequence.num_cached_tokens == core.stats().prefix_cache_queries == 0


def test_decodes_go_before_a_long_prompt(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    steps: list[list[tuple[int, int]]] = []
    core = make_core(
        max_num_batched_tokens=10,
        before_step=lambda spans: steps.append([(s.slot.seed, s.num_tokens) for s in spans]),
    )
    core.scheduler.add(make_request([1, 2, 3], 30, seed=1))
    while not steps:
        core.step()
    core.scheduler.add(make_request(LONG, 2, seed=2))
    run_all(core)
    first = next(i for i, step in enumerate(steps) if len(step) > 1)
    assert steps[first : first + 5] == [[(1, 1), (2, 9)]] * 5


def test_priority_then_arrival(make_core: MakeCore, make_request: MakeRequest) -> None:
    core = make_core(max_num_seqs=1)
    for name, priority in [("late", 1), ("first", 0), ("second", 0), ("urgent", -1)]:
        core.scheduler.add(make_request([1, 2], 1, request_id=name, priority=priority))
    order: list[str] = []
    while core.has_work:
        order += [sequence.request.request_id for sequence, _ in core.step()]
    assert order == ["urgent", "first", "second", "late"]


def test_the_preempted_goes_first_and_keeps_its_tokens(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    core = make_core(num_blocks=16)
    old = core.scheduler.add(make_request([1] * 9, 14))
    young = core.scheduler.add(make_request([2] * 9, 14))
    while not core.stats().num_preemptions:
        core.step()
    num_cached_tokens = young.num_cached_tokens
    third = core.scheduler.add(make_request([3], 2))
    assert [*core.scheduler.running] == [old]
    assert [*core.scheduler.waiting] == [young, third]
    assert young.num_generated_tokens > 0
    run_all(core)
    # What it finds of itself in the cache when it comes back is no hit of its prompt.
    assert young.num_cached_tokens == num_cached_tokens == 0
    assert (core.stats().prompt_tokens, core.stats().prefix_cache_hits) == (9 + 9 + 1, 0)


def test_urgent_requests_take_blocks_from_others(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    core = make_core(num_blocks=16)
    core.scheduler.add(make_request([2] * 9, 14, request_id="normal"))
    core.step()
    urgent = core.scheduler.add(make_request([1] * 9, 14, request_id="urgent", priority=-1))
    while not core.stats().num_preemptions:
        core.step()
    assert [*core.scheduler.running] == [urgent]
    run_all(core)


def test_who_gives_up_its_blocks_takes_no_part_in_the_step(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll, greedy_answer: GreedyAnswer
) -> None:
    steps: list[list[int]] = []
    core = make_core(
        num_blocks=20,
        max_num_batched_tokens=5,
        before_step=lambda spans: steps.append([span.slot.seed for span in spans]),
    )
    talking = core.scheduler.add(make_request([2] * 9, 30, seed=1))
    while talking.num_generated_tokens == 0:
        core.step()
    urgent = core.scheduler.add(make_request(LONG[:40], 3, seed=2, priority=-1))
    while not core.stats().num_preemptions:
        num_steps = len(steps)
        core.step()
    run_all(core)
    # Decodes go first: the talking one was in the step before the urgent one lacked blocks.
    without = [i for i, step in enumerate(steps) if step == [2]]
    assert without[0] >= num_steps
    assert urgent.token_ids[40:] == greedy_answer(LONG[:40], 3)
    assert talking.token_ids[9:] == greedy_answer([2] * 9, 30)


def test_what_can_never_fit_is_refused_with_the_numbers(
    make_core: MakeCore, make_request: MakeRequest
) -> None:
    core = make_core(num_blocks=13)
    with pytest.raises(PromptTooLong, match=r"40 tokens .* 5: .* 14 KV blocks .* has 12"):
        core.scheduler.add(make_request([1] * 40, 5))
    assert not core.scheduler.has_work


def test_the_longest_that_fits_is_answered(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll, greedy_answer: GreedyAnswer
) -> None:
    core = make_core(num_blocks=13)
    prompt = [1] * 30
    core.scheduler.add(make_request(prompt, 7, request_id="a"))  # 36 computed: 9 + 3 blocks
    assert run_all(core) == {"a": greedy_answer(prompt, 7)}


@pytest.mark.parametrize(
    ("options", "num_tokens", "reason"),
    [
        ({"max_tokens": 5}, 5, FinishReason.LENGTH),
        ({"max_tokens": 1000}, 200 - 45, FinishReason.LENGTH),
        ({"max_tokens": 5, "stop_token_ids": range(50)}, 1, FinishReason.STOP),
    ],
)
def test_finish_reasons(
    options: dict[str, Any],
    num_tokens: int,
    reason: FinishReason,
    make_core: MakeCore,
    make_request: MakeRequest,
) -> None:
    core = make_core(num_blocks=200)
    core.scheduler.add(make_request(LONG, **options))
    events = []
    while core.has_work:
        events += [event for _, event in core.step() if isinstance(event, TokenEvent)]
    assert sum(len(event.token_ids) for event in events) == num_tokens
    assert [event.finish_reason for event in events] == [None] * (num_tokens - 1) + [reason]


arrivals = st.fixed_dictionaries(
    {
        "prompt_len": st.integers(1, 40),
        "family": st.integers(0, 2),  # prompts of one family share prefixes
        "max_tokens": st.integers(1, 20),
        "priority": st.integers(-1, 1),
        "tenant": st.sampled_from(["", "a", "b"]),
        "step": st.integers(0, 30),
        "abort_after": st.none() | st.integers(0, 25),
    }
)


def _arrival(prompt_len: int, max_tokens: int, priority: int, step: int) -> dict[str, Any]:
    numbers = {"prompt_len": prompt_len, "max_tokens": max_tokens, "priority": priority}
    return {**numbers, "step": step, "family": 0, "tenant": "", "abort_after": None}


@examples(
    120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    plan=st.lists(arrivals, min_size=1, max_size=10),
    num_blocks=st.integers(20, 45),
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.integers(1, 20),
    is_prefix_caching=st.booleans(),
    max_token_gap_s=st.sampled_from([None, 0.05]),  # in a quarter of which two rows fit
)
@example(  # a row that gets a block and sits out the step in which the backend would hear of it
    plan=[
        _arrival(1, 2, 0, 8),
        _arrival(1, 1, 0, 0),
        _arrival(3, 3, 1, 0),
    ],
    num_blocks=20,
    max_num_seqs=2,
    max_num_batched_tokens=2,
    is_prefix_caching=False,
    max_token_gap_s=0.05,
)
def test_any_mix_is_answered_rightly_and_leaks_nothing(
    plan: list[dict[str, Any]],
    num_blocks: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    is_prefix_caching: bool,
    max_token_gap_s: float | None,
    make_core: MakeCore,
    make_request: MakeRequest,
    greedy_answer: GreedyAnswer,
) -> None:
    core = make_core(
        max_token_gap_s=max_token_gap_s,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        is_prefix_caching=is_prefix_caching,
    )
    answers: dict[int, list[int]] = {}
    aborted, sequences = set(), {}
    for step in range(2000):
        for i, item in enumerate(plan):
            if item["step"] == step:
                prompt = [(item["family"] + 3 * k) % 50 for k in range(item["prompt_len"])]
                request = make_request(
                    prompt, item["max_tokens"], priority=item["priority"], tenant=item["tenant"]
                )
                try:
                    sequences[i] = core.scheduler.add(request)
                except PromptTooLong:
                    aborted.add(i)
            elif i in sequences and step - item["step"] == item["abort_after"]:
                core.scheduler.remove(sequences[i])
                aborted.add(i)
        if core.has_work:
            numbers = {sequence: i for i, sequence in sequences.items()}
            for sequence, event in core.step():
                assert isinstance(event, TokenEvent)
                answers.setdefault(numbers[sequence], []).extend(event.token_ids)
            assert len(core.scheduler.running) <= max_num_seqs
        elif step > 60:
            break
        core.scheduler.blocks.check_integrity()
    assert not core.has_work
    for i, item in enumerate(plan):
        if i not in aborted:
            prompt = list(sequences[i].request.prompt_token_ids)
            assert answers[i] == greedy_answer(prompt, item["max_tokens"])
    assert core.stats().num_free_kv_blocks == core.stats().num_kv_blocks
