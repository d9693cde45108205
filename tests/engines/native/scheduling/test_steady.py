"""Sequences of which a step brings one token and nothing else: they cost no object of their own.

That they get the tokens of the other loops is what the other files show: their cores are all three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.base import EngineRequest, FinishReason, TokenEvent
from engines.errors import EngineError, RequestFailed
from engines.native.backends.base import Batch
from engines.native.loop.core import EngineCore
from tests.engines.native.scheduling.conftest import HashModel, LateBackend, LateStep

MakeRequest = Callable[..., EngineRequest]


class Counting(LateBackend):
    """Keeps the batches; in one of them the first steady row has logits that are not finite."""

    breaks_at: int | None = None

    def launch(self, batch: Batch) -> LateStep:
        self.batches = [*getattr(self, "batches", []), batch]
        step = super().launch(batch)
        if len(self.batches) - 1 == self.breaks_at:
            tokens = step.steady_tokens
            step.steady_tokens = lambda: [-1, *tokens()[1:]]  # type: ignore[method-assign]
        return step


def core_of(**model: Any) -> tuple[EngineCore, Counting]:
    made = HashModel(num_blocks=400, **model)
    backend = Counting(made.backend(), takes_steady=True)
    return made.core(backend, max_num_seqs=16), backend


def run(core: EngineCore) -> dict[str, list[TokenEvent | EngineError]]:
    found: dict[str, list[TokenEvent | EngineError]] = {}
    while core.has_work:
        for sequence, outcome in core.step():
            found.setdefault(sequence.request.request_id, []).append(outcome)
        core.scheduler.blocks.check_integrity()
    return found


def test_rows_are_made_for_the_ends_of_sequences_and_not_for_their_tokens(
    make_request: MakeRequest,
) -> None:
    core, backend = core_of()
    for number in range(12):
        core.scheduler.add(make_request([number, 1], 40))
    assert all(len(events) == 40 for events in run(core).values())
    num_rows = sum(len(batch.rows) for batch in backend.batches)
    num_steady = sum(len(each.steady.slots) for each in backend.batches if each.steady is not None)
    assert num_rows == 12  # the prompts
    assert num_rows + num_steady == 12 * 40
    stats = core.stats()
    assert (stats.generated_tokens, stats.step_tokens) == (12 * 40, 12 * (2 + 39))


def test_what_needs_more_than_a_token_is_a_row_of_its_own(make_request: MakeRequest) -> None:
    core, backend = core_of()
    core.scheduler.add(make_request([1, 2], 9, logprobs=2, request_id="scored"))
    core.scheduler.add(make_request([3, 4], 9, min_tokens=4, request_id="masked"))
    core.scheduler.add(make_request([5, 6], 9, request_id="plain"))
    found = run(core)
    assert all(outcome.logprobs for outcome in found["scored"] if isinstance(outcome, TokenEvent))
    numbers = {len(each.steady.slots) for each in backend.batches if each.steady is not None}
    assert numbers == {1}


def test_a_row_that_is_broken_fails_alone(
    make_request: MakeRequest, greedy_answer: Callable[..., list[int]]
) -> None:
    core, backend = core_of()
    backend.breaks_at = 4
    core.scheduler.add(make_request([1, 2], 9, request_id="first"))
    core.scheduler.add(make_request([3, 4], 30, request_id="second"))
    found = run(core)
    assert isinstance(found["first"][-1], RequestFailed)
    tokens = [event.token_ids for event in found["second"] if isinstance(event, TokenEvent)]
    assert [token for (token,) in tokens] == greedy_answer([3, 4], 30)


def test_the_next_token_after_an_abort_is_right(
    make_request: MakeRequest, greedy_answer: Callable[..., list[int]]
) -> None:
    core, _ = core_of()
    aborted = core.scheduler.add(make_request([1, 2], 30, request_id="aborted"))
    core.scheduler.add(make_request([3, 4, 5], 30, request_id="other"))
    tokens: list[int] = []
    for number in range(60):
        if number == 9:
            assert aborted.is_steady
            core.scheduler.remove(aborted)
        for sequence, outcome in core.step() if core.has_work else []:
            assert isinstance(outcome, TokenEvent)
            tokens += outcome.token_ids if sequence.request.request_id == "other" else ()
    assert tokens == greedy_answer([3, 4, 5], 30)
    assert core.stats().num_free_kv_blocks == core.stats().num_kv_blocks


def test_the_end_of_an_answer_is_told_with_its_last_token(make_request: MakeRequest) -> None:
    core, _ = core_of()
    core.scheduler.add(make_request([1, 2, 3], 7, request_id="long"))
    outcomes = run(core)["long"]
    reasons = [outcome.finish_reason for outcome in outcomes if isinstance(outcome, TokenEvent)]
    assert reasons == [None] * 6 + [FinishReason.LENGTH]
