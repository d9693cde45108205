"""Tenants share the engine, whoever came first with however much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.base import EngineRequest, TokenEvent
from engines.native.core import EngineCore
from engines.native.sequence import Sequence

MakeCore = Callable[..., EngineCore]
MakeRequest = Callable[..., EngineRequest]


def flood(core: EngineCore, make_request: MakeRequest, num_requests: int) -> None:
    for i in range(num_requests):
        core.scheduler.add(make_request([i % 50], 4, request_id=f"f{i}", tenant="flood"))


def events_of(core: EngineCore) -> list[tuple[Sequence, TokenEvent]]:
    return [(s, event) for s, event in core.step() if isinstance(event, TokenEvent)]


def finished(core: EngineCore, until: str) -> list[str]:
    """Who ended, in order, up to that one."""
    order: list[str] = []
    while until not in order:
        order += [s.request.request_id for s, event in events_of(core) if event.finish_reason]
    return order


def test_a_thousand_requests_do_not_hold_up_another_tenants_one(
    make_core: MakeCore, make_request: MakeRequest, run_all: Any, greedy_answer: Any
) -> None:
    core = make_core(max_num_seqs=2, max_num_waiting=2000, num_blocks=24)
    flood(core, make_request, 1000)
    core.step()
    one = core.scheduler.add(make_request([7, 8, 9], 4, request_id="one", tenant="other"))
    assert len(finished(core, "one")) <= 4
    assert one.token_ids[3:] == greedy_answer([7, 8, 9], 4)
    for sequence in [*core.scheduler.running, *core.scheduler.waiting]:
        core.scheduler.remove(sequence)


def test_tenants_that_both_have_plenty_get_the_same_number_of_tokens(
    make_core: MakeCore, make_request: MakeRequest
) -> None:
    core = make_core(max_num_seqs=3, max_num_waiting=2000, num_blocks=64)
    flood(core, make_request, 300)
    for i in range(100):
        core.scheduler.add(make_request([3], 12, request_id=f"l{i}", tenant="long"))
    num_tokens = {"flood": 0, "long": 0}
    for _ in range(400):
        for sequence, event in events_of(core):
            num_tokens[sequence.request.tenant] += len(event.token_ids)
    assert 0.8 < num_tokens["flood"] / num_tokens["long"] < 1.25
    for sequence in [*core.scheduler.running, *core.scheduler.waiting]:
        core.scheduler.remove(sequence)


def test_blocks_are_given_up_by_who_was_admitted_last(
    make_core: MakeCore, make_request: MakeRequest, run_all: Any, greedy_answer: Any
) -> None:
    core = make_core(num_blocks=16)
    core.scheduler.add(make_request([2] * 9, 14, request_id="first", tenant="a"))
    core.scheduler.add(make_request([5] * 9, 14, request_id="second", tenant="b"))
    while not core.stats().num_preemptions:
        core.step()
    assert [s.request.request_id for s in core.scheduler.running] == ["first"]
    core.scheduler.add(make_request([6], 2, request_id="newcomer", tenant="c"))
    assert [s.request.request_id for s in core.scheduler.waiting] == ["second", "newcomer"]
    order = finished(core, "newcomer")
    assert order[0] == "first"
    run_all(core)
