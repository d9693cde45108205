"""Who gives up its blocks, and who gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.base import EngineRequest, TokenEvent
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence

MakeCore = Callable[..., EngineCore]
MakeRequest = Callable[..., EngineRequest]


def events_of(core: EngineCore) -> list[tuple[Sequence, TokenEvent]]:
    return [(s, event) for s, event in core.step() if isinstance(event, TokenEvent)]


def finished(core: EngineCore, until: str) -> list[str]:
    """Who ended, in order, up to that one."""
    order: list[str] = []
    while until not in order:
        order += [s.request.request_id for s, event in events_of(core) if event.finish_reason]
    return order


def test_blocks_are_given_up_by_who_was_admitted_last(
    make_core: MakeCore, make_request: MakeRequest, run_all: Any, greedy_answer: Any
) -> None:
    core = make_core(num_blocks=16)
    core.scheduler.add(make_request([2] * 9, 14, request_id="first"))
    core.scheduler.add(make_request([5] * 9, 14, request_id="second"))
    while not core.stats().num_preemptions:
        core.step()
    assert [s.request.request_id for s in core.scheduler.running] == ["first"]
    core.scheduler.add(make_request([6], 2, request_id="newcomer"))
    assert [s.request.request_id for s in core.scheduler.waiting] == ["second", "newcomer"]
    order = finished(core, "newcomer")
    assert order[0] == "first"
    run_all(core)
