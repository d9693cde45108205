"""Requests and outputs, translated; the objects of vLLM are stand-ins with its own names."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from engines.base import EngineRequest, FinishReason, SamplingParams, TokenEvent, TokenLogprob
from engines.errors import InvalidRequest, RequestFailed
from engines.fields import RepetitionDetection
from engines.prompt_logprobs import PromptToken, packed_in, unpacked
from engines.vllm.counters import VllmCounters
from engines.vllm.requests import VllmOutputs, prompt_of, sampling_of
from tests.engines.vllm.conftest import SURFACE, stand_in

SAMPLING = SamplingParams(
    max_tokens=40,
    temperature=0.5,
    top_p=0.9,
    top_k=5,
    min_p=0.1,
    presence_penalty=0.25,
    frequency_penalty=-0.25,
    repetition_penalty=1.5,
    logit_bias={3: -2.0},
    seed=11,
    repetition_detection=RepetitionDetection(max_pattern_size=8, min_count=3),
    logprobs=2,
    min_tokens=4,
)
REQUEST = EngineRequest("r", (1, 2, 3), SAMPLING, stop_token_ids=(8, 9))


def test_every_wish_reaches_vllm_by_its_own_name() -> None:
    given = sampling_of(REQUEST, None)
    assert given.keys() <= {*SURFACE["SamplingParams"]}
    for field in fields(SamplingParams):
        assert given[field.name] == getattr(SAMPLING, field.name), field.name
    assert given["stop_token_ids"] == [8, 9]
    assert given["ignore_eos"]  # an answer ends where the request says
    assert not given["detokenize"]


def test_what_was_generated_before_is_a_part_of_the_prompt() -> None:
    request = replace(REQUEST, generated_token_ids=(4, 5, 6))
    assert prompt_of(request) == {"prompt_token_ids": [1, 2, 3, 4, 5, 6]}
    given = sampling_of(request, None)
    assert (given["max_tokens"], given["min_tokens"]) == (37, 1)


def test_salts_stay_apart() -> None:
    prompts = [prompt_of(replace(REQUEST, cache_salt=salt)) for salt in (None, "", "a")]
    assert all(prompt.keys() <= {*SURFACE["TokensPrompt"]} for prompt in prompts)
    salts = [prompt.get("cache_salt") for prompt in prompts]
    assert len({*salts}) == 3
    assert salts[0] is None
    assert all(salts[1:])  # vLLM takes an empty one for none


@pytest.mark.parametrize(("seed", "given"), [(None, None), (0, 0), (-1, 2**63 - 1), (2**63, 0)])
def test_every_seed_is_a_seed(seed: int | None, given: int | None) -> None:
    request = replace(REQUEST, sampling=replace(SAMPLING, seed=seed))
    assert sampling_of(request, None)["seed"] == given


def test_a_temperature_that_vllm_does_not_have_is_refused() -> None:
    request = replace(REQUEST, sampling=replace(SAMPLING, temperature=2.5))
    with pytest.raises(InvalidRequest, match=r"temperature is 2.5; .* 0 to 2"):
        sampling_of(request, None)


def output(
    token_ids: list[int],
    finish: str | None = None,
    logprobs: Any = None,
    prompt_logprobs: Any = None,
) -> Any:
    completion = stand_in(
        "CompletionOutput", token_ids=token_ids, finish_reason=finish, logprobs=logprobs
    )
    metrics = stand_in("RequestStateStats", scheduled_ts=12.5)
    return stand_in(
        "RequestOutput",
        outputs=[completion],
        num_cached_tokens=2,
        metrics=metrics,
        prompt_logprobs=prompt_logprobs,
    )


def outputs(**changes: Any) -> VllmOutputs:
    plain = replace(REQUEST, sampling=SamplingParams(40))
    return VllmOutputs(replace(plain, **changes), arrived_s=10.0)


def test_tokens_become_events_with_what_is_the_same_on_each() -> None:
    stream = outputs()
    assert stream.event(output([5, 6])) == TokenEvent((5, 6), None, None, 2)
    last = stream.event(output([9], "stop"))
    assert last == TokenEvent((9,), None, FinishReason.STOP, 2)
    assert last.queued_s == 2.5
    assert outputs().event(output([])) is None
    for reason in ("length", "repetition"):
        length = outputs().event(output([7], reason))
        assert length is not None
        assert length.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("finish", "last", "reason"), [("abort", 5, "ended the request: abort"), ("stop", 5, "grammar")]
)
def test_an_end_that_is_none_is_an_error(finish: str, last: int, reason: str) -> None:
    with pytest.raises(RequestFailed, match=reason):
        outputs().event(output([last], finish))


def test_a_dead_end_of_a_grammar_stops_what_would_go_on_for_ever() -> None:
    assert sampling_of(REQUEST, 511)["stop_token_ids"] == [8, 9, 511]
    assert sampling_of(REQUEST, 9)["stop_token_ids"] == [8, 9]


def test_logprobs_are_the_chosen_one_and_the_likeliest() -> None:
    entries = {
        5: stand_in("Logprob", logprob=-3.0, rank=7),
        1: stand_in("Logprob", logprob=-0.5, rank=1),
        2: stand_in("Logprob", logprob=-1.0, rank=2),
    }
    for num_top, top in ((2, ((1, -0.5), (2, -1.0))), (0, ())):
        stream = outputs(sampling=SamplingParams(4, logprobs=num_top))
        event = stream.event(output([5], None, [entries]))
        assert event is not None
        assert event.logprobs == (TokenLogprob(5, -3.0, top),)


def test_a_prompt_is_scored_once() -> None:
    def place(**ranks: float) -> dict[int, Any]:
        return {
            int(name[1:]): stand_in("Logprob", logprob=value, rank=rank)
            for rank, (name, value) in enumerate(ranks.items(), 1)
        }

    prompt = (3, 5, 6)
    given = [None, place(_5=-0.5), place(_1=-0.125, _2=-0.25, _6=-4.0)]
    stream = outputs(prompt_token_ids=prompt, sampling=SamplingParams(4, prompt_logprobs=1))
    first = stream.event(output([9], None, prompt_logprobs=given))
    assert first is not None
    found = [*unpacked(packed_in(first) or (), prompt)]
    assert found == [
        PromptToken(5, -0.5, 1, ((5, -0.5),)),
        PromptToken(6, -4.0, 3, ((1, -0.125),)),
    ]
    second = stream.event(output([9], None, prompt_logprobs=given))
    assert second is not None
    assert second.extras is None


def test_counters_add_up_over_steps_and_engines() -> None:
    counters = VllmCounters()
    counters.num_blocks, counters.block_size = 100, 16
    drafts = stand_in(
        "SpecDecodingStats",
        num_drafts=2,
        num_draft_tokens=6,
        num_accepted_tokens_per_pos=[2, 1, 0],
    )
    for engine in (0, 1):
        cache = stand_in("PrefixCacheStats", queries=30, hits=10)
        scheduler = stand_in(
            "SchedulerStats",
            kv_cache_usage=0.2 + 0.2 * engine,
            num_waiting_reqs=1,
            num_skipped_waiting_reqs=0,
            prefix_cache_stats=cache,
            spec_decoding_stats=drafts if engine else None,
        )
        iteration = stand_in(
            "IterationStats",
            num_preempted_reqs=1,
            num_generation_tokens=4,
            prompt_token_stats=stand_in("PromptTokenStats", computed=20 * engine),
        )
        counters.record(scheduler, iteration, engine)
        counters.record(None, None, engine)
        counters.count_prompt(30)
    stats = counters.stats(num_inside=5)
    assert (stats.num_running, stats.num_waiting) == (3, 2)
    assert (stats.num_kv_blocks, stats.num_free_kv_blocks, stats.kv_block_size) == (100, 70, 16)
    assert (stats.prompt_tokens, stats.generated_tokens) == (60, 8)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (60, 20)
    assert (stats.num_steps, stats.num_preemptions) == (2, 2)
    assert (stats.step_tokens, stats.steps_by_tokens[:5]) == (28, (0, 1, 0, 1, 0))
    assert (stats.num_drafts, stats.draft_tokens, stats.accepted_draft_tokens) == (2, 6, 3)
    assert stats.accepted_by_position == (2, 1, 0)
    idle = counters.stats(num_inside=0)  # vLLM has said nothing since; all were aborted
    assert (idle.num_running, idle.num_waiting, idle.num_free_kv_blocks) == (0, 0, 100)
