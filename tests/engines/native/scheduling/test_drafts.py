"""Several tokens a step: guesses that are verified change no token, right or wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.base import EngineRequest, FinishReason, TokenEvent
from engines.errors import EngineStartError
from engines.native.assemble import options_of_backend
from engines.native.backends.base import Capacity
from engines.native.config import NativeConfig
from engines.native.host.sampler import verify
from engines.native.host.slots import Logits, Slot
from engines.native.loop.core import EngineCore
from engines.native.loop.option import Option
from engines.native.loop.sequence import Sequence
from engines.parts import folders

MakeCore = Callable[..., EngineCore]
MakeRequest = Callable[..., EngineRequest]
PROMPTS = [[(7 * i) % 50 for i in range(21)], [5, 6, 7], [3] * 9]


class Guesses(Option):
    """Guesses the answers that are known to it; from some token on each guess is wrong."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]], num: int, wrong: int) -> None:
        self._answers, self._num, self._wrong = answers, num, wrong

    def waits(self, decoding: Sequence_[Sequence]) -> bool:
        return True

    def drafts(self, decoding: Sequence_[Sequence]) -> dict[Sequence, tuple[int, ...]]:
        return {sequence: self._guess(sequence) for sequence in decoding}

    def _guess(self, sequence: Sequence) -> tuple[int, ...]:
        answer = self._answers[sequence.request.prompt_token_ids]
        guesses = answer[sequence.num_generated_tokens :][: self._num]
        right = guesses[: self._wrong]
        return (*right, *((token + 1) % 50 for token in guesses[len(right) :]))


def events_of(core: EngineCore) -> dict[str, list[TokenEvent]]:
    events: dict[str, list[TokenEvent]] = {}
    while core.has_work:
        for sequence, event in core.step():
            assert isinstance(event, TokenEvent), event
            events.setdefault(sequence.request.request_id, []).append(event)
        core.scheduler.blocks.check_integrity()
    return events


def tokens_of(events: list[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


@pytest.mark.parametrize(("num", "wrong"), [(1, 1), (4, 4), (4, 2), (3, 0)])
@pytest.mark.parametrize("num_blocks", [22, 64])
def test_right_and_wrong_guesses_change_no_token(
    num: int,
    wrong: int,
    num_blocks: int,
    make_core: MakeCore,
    make_request: MakeRequest,
    greedy_answer: Any,
) -> None:
    answers = {tuple(prompt): greedy_answer(prompt, 20) for prompt in PROMPTS}
    core = make_core(num_blocks=num_blocks, extra=[Guesses(answers, num, wrong)])
    for i, prompt in enumerate(PROMPTS):
        core.scheduler.add(make_request(prompt, 20, request_id=str(i)))
    events = events_of(core)
    for i, prompt in enumerate(PROMPTS):
        assert tokens_of(events[str(i)]) == answers[tuple(prompt)]
        longest = max(len(event.token_ids) for event in events[str(i)])
        assert longest == min(num, wrong) + 1
    if num_blocks == 22:
        assert core.stats().num_preemptions > 0
    # What was computed for wrong guesses is in no prefix.
    again = [*PROMPTS[0], *answers[tuple(PROMPTS[0])]]
    answers[tuple(again)] = greedy_answer(again, 5)
    core.scheduler.add(make_request(again, 5, request_id="again"))
    assert tokens_of(events_of(core)["again"]) == answers[tuple(again)]


def test_draws_with_a_seed_a_bias_and_logprobs_are_those_without_guesses(
    make_core: MakeCore, make_request: MakeRequest
) -> None:
    options = {"temperature": 1.0, "seed": 5, "logit_bias": {7: 1.5}, "logprobs": 2}
    plain = make_core()
    plain.scheduler.add(make_request(PROMPTS[0], 20, request_id="a", **options))
    expected = events_of(plain)["a"]
    answers = {tuple(PROMPTS[0]): tokens_of(expected)}
    core = make_core(extra=[Guesses(answers, 3, 2)])
    core.scheduler.add(make_request(PROMPTS[0], 20, request_id="a", **options))
    events = events_of(core)["a"]
    assert len(events) < len(expected)
    assert tokens_of(events) == tokens_of(expected)
    assert [each for event in events for each in event.logprobs or ()] == [
        each for event in expected for each in event.logprobs or ()
    ]


def test_a_stop_token_among_the_guesses_ends_the_answer(
    make_core: MakeCore, make_request: MakeRequest, greedy_answer: Any
) -> None:
    answer = greedy_answer(PROMPTS[0], 20)
    stop = next(i for i in range(3, 20) if answer[i] not in answer[:i])
    core = make_core(extra=[Guesses({tuple(PROMPTS[0]): answer}, 8, 8)])
    core.scheduler.add(
        make_request(PROMPTS[0], 20, request_id="a", stop_token_ids=(answer[stop],), logprobs=0)
    )
    events = events_of(core)["a"]
    assert tokens_of(events) == answer[: stop + 1]
    assert events[-1].finish_reason is FinishReason.STOP
    assert [each.token_id for e in events for each in e.logprobs or ()] == answer[: stop + 1]
    assert core.stats().generated_tokens == stop + 1


def test_the_tokens_of_a_verified_step_have_the_models_distribution(
    make_slot: Callable[..., Slot],
) -> None:
    """Chi-square over 2,000 seeds; the outcomes are the drafts accepted and the token after."""
    torch.manual_seed(0)
    logits, drafts = torch.randn(3, 5), (2, 4)
    shares = torch.softmax(logits / 0.8, dim=1).double()
    expected: dict[tuple[int, ...], float] = {}
    for num in range(3):
        before = math.prod(float(shares[i, drafts[i]]) for i in range(num))
        for token in range(5):
            if num == 2 or token != drafts[num]:
                expected[(*drafts[:num], token)] = before * float(shares[num, token])
    num_draws = 2000
    found = Counter(
        verify(Logits(logits.clone()), make_slot(seed=seed, temperature=0.8), drafts).token_ids
        for seed in range(num_draws)
    )
    assert found.keys() <= expected.keys()
    statistic = sum(
        (found[outcome] - num_draws * p) ** 2 / (num_draws * p) for outcome, p in expected.items()
    )
    assert len(expected) == 13
    assert statistic < 32.9  # 12 degrees of freedom: 1 of 1,000 right samplers is above


def test_an_unknown_speculation_is_refused() -> None:
    with pytest.raises(EngineStartError, match="speculation is 'eager'; use one of"):
        NativeConfig(Path(), speculation="eager")  # type: ignore[arg-type]


@pytest.mark.skipif("drafts" in folders(), reason="the part drafts is there")
def test_speculation_without_the_part_is_refused() -> None:
    config = NativeConfig(Path(), speculation="ngram")
    with pytest.raises(EngineStartError, match="no part makes drafts; use 'none'"):
        options_of_backend(config, Capacity(2, 16, 32, max_drafts=8))
