"""Several tokens a step: guesses that are verified change no token, right or wrong."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from typing import Any

import pytest

from engines.base import EngineRequest, FinishReason, TokenEvent
from engines.native.drafting import Drafter
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence

MakeCore = Callable[..., EngineCore]
MakeRequest = Callable[..., EngineRequest]
PROMPTS = [[(7 * i) % 50 for i in range(21)], [5, 6, 7], [3] * 9]


class Guesses(Drafter):
    """Guesses the answers that are known to it; from some token on each guess is wrong."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]], num: int, wrong: int) -> None:
        self._answers, self._num, self._wrong = answers, num, wrong

    def waits(self, decoding: Sequence_[Sequence]) -> bool:
        return True

    def guess(self, decoding: Sequence_[Sequence]) -> dict[Sequence, tuple[int, ...]]:
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
    core = make_core(num_blocks=num_blocks, drafter=Guesses(answers, num, wrong))
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
    core = make_core(drafter=Guesses(answers, 3, 2))
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
    core = make_core(drafter=Guesses({tuple(PROMPTS[0]): answer}, 8, 8))
    core.scheduler.add(
        make_request(PROMPTS[0], 20, request_id="a", stop_token_ids=(answer[stop],), logprobs=0)
    )
    events = events_of(core)["a"]
    assert tokens_of(events) == answer[: stop + 1]
    assert events[-1].finish_reason is FinishReason.STOP
    assert [each.token_id for e in events for each in e.logprobs or ()] == answer[: stop + 1]
    assert core.stats().generated_tokens == stop + 1
