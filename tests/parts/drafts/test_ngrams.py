"""Guesses from what occurred before: when they are made, and that they change no token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engines.base import EngineRequest
from engines.errors import EngineStartError
from engines.native.backends.base import Capacity
from engines.native.config import NativeConfig
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from parts.drafts.engine import ENGINE
from parts.drafts.ngram_drafts import NgramDrafts, numbers_that_pay
from parts.drafts.ngrams import NgramLookup
from tests.engines.native.scheduling.conftest import HashModel, step_cost

MakeCore = Callable[..., EngineCore]
MakeRequest = Callable[..., EngineRequest]
RunAll = Callable[[EngineCore], dict[str, list[int]]]
PROMPTS = [[(7 * i) % 50 for i in range(21)], [5, 6, 7], [0, 1, 2, 3, 4] * 4]


def lookup_of(text: list[int], *later: int) -> NgramLookup:
    lookup = NgramLookup(text, len(text))
    text += later
    lookup.catch_up()
    return lookup


def test_a_guess_is_what_followed_the_last_three_tokens_before() -> None:
    assert lookup_of([1, 2, 3, 4, 5, 6, 1, 2, 3]).guess(2) == (4, 5)
    assert lookup_of([1, 2, 3, 4, 5, 6], 1, 2, 3).guess(4) == (4, 5, 6, 1)
    assert lookup_of([9, 1, 2, 3, 8, 1, 2, 3, 7], 1, 2, 3).guess(1) == (7,)  # the last time
    assert lookup_of([1, 2, 3, 4, 5], 2, 3).guess(3) == ()


def test_a_guess_goes_on_with_a_repetition_beyond_the_text() -> None:
    assert lookup_of([1, 2, 3, 4, 1, 2, 3]).guess(7) == (4, 1, 2, 3, 4, 1, 2)
    assert lookup_of([5], 5, 5, 5).guess(3) == (5, 5, 5)


def test_the_rate_follows_the_guesses_whether_or_not_they_were_verified() -> None:
    lookup = lookup_of([*range(20)], *range(20))
    assert lookup.rate > 0.9
    lookup = lookup_of([*range(20)], 0, 1, 2, 30, 0, 1, 2, 31, 0, 1, 2, 32, 0, 1, 2, 33)
    assert lookup.rate < 0.5


@pytest.mark.parametrize(
    ("chances", "numbers"),
    [
        ([[0.9, 0.8, 0.7], [0.0, 0.0, 0.0]], [3, 0]),
        ([[0.2, 0.1], [0.9, 0.8]], [0, 2]),
        ([[0.3], [0.3]], [0, 0]),  # would not pay for the longer step
        ([[0.9]] * 31, [0] * 31),  # one more fits, and brings less than it costs elsewhere
    ],
)
def test_as_many_are_verified_as_bring_most_tokens_for_the_time(
    chances: list[list[float]], numbers: list[int]
) -> None:
    def cost(num_sequences: int, num_drafts: NDArray[np.float64]) -> NDArray[np.float64]:
        num = num_sequences + num_drafts
        return np.where(num <= 32, 1 + num / 4, np.inf)

    assert numbers_that_pay(np.array(chances), cost) == numbers


@pytest.mark.parametrize(
    ("repetition", "sampling"), [(3.5, {}), (7.0, {"temperature": 1.0, "seed": 3, "min_p": 0.01})]
)
def test_a_repetitive_answer_is_the_same_in_fewer_steps(
    repetition: float,
    sampling: dict[str, Any],
    make_core: MakeCore,
    make_request: MakeRequest,
    run_all: RunAll,
) -> None:
    answers, num_steps = [], []
    for extra in ([], [NgramDrafts(8, step_cost)]):
        core = make_core(extra=extra, repetition=repetition, max_num_batched_tokens=64)
        for i, prompt in enumerate(PROMPTS):
            core.scheduler.add(make_request(prompt, 60, request_id=str(i), **sampling))
        answers.append(run_all(core))
        num_steps.append(core.stats().num_steps)
    stats = core.stats()
    assert answers[0] == answers[1]
    assert num_steps[1] < 0.7 * num_steps[0]
    assert stats.draft_tokens > stats.accepted_draft_tokens > 0.5 * stats.draft_tokens
    right = stats.accepted_by_position
    assert sum(right) == stats.accepted_draft_tokens
    assert stats.num_drafts >= right[0] >= right[-1] > 0
    assert sum(stats.steps_by_tokens) == stats.num_steps
    num_read = sum(map(len, PROMPTS)) - stats.prefix_cache_hits
    num_wrong = stats.draft_tokens - stats.accepted_draft_tokens
    # A prompt's last step brings the first token, which the next one computes.
    num_computed = stats.generated_tokens - len(PROMPTS) + num_wrong
    assert stats.step_tokens == num_read + num_computed


def test_guesses_that_are_wrong_are_given_up(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    core = make_core(extra=[NgramDrafts(8, lambda n, d: 1 + (n + d) / 4)])
    # Three tokens that always come back, and what follows them never does.
    prompt = [token for i in range(15) for token in (1, 2, 3, 10 + i)]
    core.scheduler.add(make_request(prompt, 40, logit_bias={1: 20.0, 2: 20.0, 3: 20.0}))
    run_all(core)
    stats = core.stats()
    assert stats.generated_tokens == 40
    assert stats.draft_tokens - stats.accepted_draft_tokens < 20


@pytest.mark.parametrize(
    "asked", [{"frequency_penalty": 0.5}, {"repetition_penalty": 1.1}, {"min_tokens": 3}]
)
def test_what_depends_on_the_tokens_before_is_not_guessed(
    asked: dict[str, Any], make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    core = make_core(extra=[NgramDrafts(8, step_cost)], repetition=40.0)
    core.scheduler.add(make_request(PROMPTS[2], 30, **asked))
    run_all(core)
    assert core.stats().draft_tokens == 0


def test_no_guesses_where_no_such_step_is(
    make_core: MakeCore, make_request: MakeRequest, run_all: RunAll
) -> None:
    core = make_core(extra=[NgramDrafts(8, lambda n, d: np.where(n + d <= 2, 1.0, np.inf))])
    core.scheduler.add(make_request(PROMPTS[2], 30))
    core.scheduler.add(make_request(PROMPTS[2], 30))
    run_all(core)
    assert core.stats().draft_tokens == 0


def test_no_guesses_among_many(make_sequence: Callable[..., Sequence]) -> None:
    """Looking for them would cost more than there is to gain."""
    drafter = NgramDrafts(8, lambda n, d: 1 + 0 * d)
    sequences = [make_sequence(PROMPTS[2]) for _ in range(33)]
    assert drafter.drafts(sequences) == {}
    assert not drafter.waits(sequences)
    assert drafter.drafts(sequences[:32]).keys() == {*sequences[:32]}


def test_the_option_speculation_switches_it_on() -> None:
    model = HashModel()
    for speculation, max_drafts in (("none", 0), ("ngram", 8)):
        core = model.core(model.backend(), speculation=speculation)
        assert core.scheduler.limits.max_drafts == max_drafts


def test_a_device_that_cannot_verify_drafts_is_refused() -> None:
    with pytest.raises(EngineStartError, match="this device cannot verify drafts; use 'none'"):
        ENGINE.for_backend(NativeConfig(Path(), speculation="ngram"), Capacity(2, 16, 32))
