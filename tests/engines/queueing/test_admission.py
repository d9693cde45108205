"""What stands before every engine: how much it is given at a time, and what becomes of the rest."""

from __future__ import annotations

import asyncio

import pytest

from engines.base import (
    TokenEvent,
)
from engines.errors import Overloaded, QueueFull
from engines.queueing.admission import QueuedEngine
from tests.engines.queueing.recorder import Clock, Recorder, engine_of, opener, request


async def test_no_more_than_the_engine_has_places_for() -> None:
    runner = Recorder(max_num_seqs=2)
    engine = await engine_of(runner)
    open_, _ = opener(engine)
    for name in "abcd":
        await open_(request(name))
    assert runner.begun == ["a", "b"]
    assert (await engine.stats()).num_waiting == 3  # one of them within the engine
    runner.give("a")
    assert runner.begun == ["a", "b"]
    runner.give("a", is_last=True)
    assert runner.begun == ["a", "b", "c"]


async def test_prompts_of_two_steps_lie_ahead_of_the_engine_and_no_more() -> None:
    runner = Recorder()
    open_, _ = opener(await engine_of(runner))
    for name in "abcde":
        await open_(request(name, 60))
    assert runner.begun == ["a", "b", "c"]  # 180 tokens; four would be 240
    runner.give("a")
    assert runner.begun == ["a", "b", "c", "d"]


async def test_two_go_ahead_however_long_they_are() -> None:
    runner = Recorder()
    open_, _ = opener(await engine_of(runner))
    for name in "abc":
        await open_(request(name, 900))
    assert runner.begun == ["a", "b"]


async def test_the_urgent_are_not_held_by_what_is_less_so() -> None:
    runner = Recorder()
    open_, _ = opener(await engine_of(runner))
    for name in "abc":
        await open_(request(name, 900, priority=1))
    await open_(request("urgent", 900, priority=0))
    await open_(request("patient", 900, priority=2))
    assert runner.begun == ["a", "b", "urgent"]


async def test_what_was_cached_is_not_charged() -> None:
    runner = Recorder(max_num_seqs=1)
    open_, _ = opener(await engine_of(runner))
    await open_(request("a1", 60, tenant="a"))
    for name in ("b1", "a2"):
        await open_(request(name, 50, tenant=name[0]))
    runner.give("a1", cached=59, is_last=True)
    runner.give("b1", is_last=True)
    await open_(request("b2", 50, tenant="b"))
    assert runner.begun == ["a1", "b1", "a2"]
    await open_(request("a3", 50, tenant="a"))
    runner.give("a2", is_last=True)
    assert runner.begun[-1] == "b2"  # a: 1 + 50 + 4, b: 50 + 2


async def test_who_has_waited_as_long_as_it_may_is_told_before_it_begins() -> None:
    runner = Recorder(max_num_seqs=1)
    open_, heard = opener(await engine_of(runner))
    for name, limit_s in (("a", 0.01), ("b", 0.02), ("c", None)):  # who is inside may be late
        await open_(request(name, max_wait_s=limit_s))
    async with asyncio.timeout(60):
        while not heard:
            await asyncio.sleep(0.01)
    assert [type(outcome) for outcome in heard] == [Overloaded]
    runner.give("a", is_last=True)
    runner.give("c", is_last=True)
    assert (runner.begun, runner.aborted) == (["a", "c"], [])


async def test_a_burst_is_served_whole_if_its_last_one_begins_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten times what runs at once, on an engine whose pace is known to be slow from before."""
    clock = Clock(monkeypatch)
    runner = Recorder(max_num_seqs=4)
    open_, heard = opener(await engine_of(runner))
    for number in range(40):  # one answer takes 20 s: what is learnt of the pace is bad
        await open_(request(f"slow{number}", max_wait_s=300.0))
    for number in range(40):
        await clock.pass_to(5.0 * number)
        runner.give(f"slow{number}", is_last=True)
    heard.clear()
    for number in range(40):
        await open_(request(str(number), max_wait_s=30.0))
    for number in range(40):
        await clock.pass_to(clock.now_s + 0.7)
        runner.give(str(number), is_last=True)
    assert [type(outcome) for outcome in heard] == [TokenEvent] * 40


async def test_who_is_sure_to_wait_too_long_is_told_at_once_and_when_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice as much comes as is done; the refusals say when a request would be served."""
    clock = Clock(monkeypatch)
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, heard = opener(engine)
    refused, begun = [], 0
    for tick in range(400):  # of half a second, in which one comes; an answer takes a second
        await clock.pass_to(tick / 2)
        try:
            await open_(request(str(tick), max_wait_s=10.0))
        except Overloaded as error:
            refused.append((tick, error.retry_s))
        if tick % 2 and len(runner.begun) > begun:
            runner.give(runner.begun[begun], is_last=True)
            begun += 1
    assert begun >= 198  # nothing is lost
    assert refused
    late = [outcome for outcome in heard if isinstance(outcome, Overloaded)]
    assert len(late) + len(refused) > 150
    assert all(1 <= retry_s <= 10 for _, retry_s in refused)
    for _ in range(refused[-1][1]):  # nobody else comes
        await clock.pass_to(clock.now_s + 1)
        runner.give(runner.begun[begun], is_last=True)
        begun += 1
    await open_(request("again", max_wait_s=10.0))
    came_s = clock.now_s
    while runner.begun[-1] != "again":
        await clock.pass_to(clock.now_s + 1)
        runner.give(runner.begun[begun], is_last=True)
        begun += 1
    assert clock.now_s - came_s <= 10.0


async def test_another_tenant_waits_for_its_own_share_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner)
    open_, _ = opener(engine)
    for number in range(30):
        await open_(request(str(number), tenant="flood"))
    for number in range(10):
        await clock.pass_to(1.0 + number)
        runner.give(str(number), is_last=True)
    waits = engine.expected_waits()
    assert waits.of("flood").likely_s == pytest.approx(19, rel=0.2)
    assert waits.of("other").likely_s < 2
    assert waits.of("flood") == engine.expected_wait("flood")


async def test_nothing_is_expected_without_a_queue() -> None:
    runner = Recorder(max_num_seqs=2)
    engine = await engine_of(runner)
    open_, _ = opener(engine)
    await open_(request("a"))
    await open_(request("b"))
    assert engine.expected_wait("") == (0, 0)
    assert engine.expected_waits().of("") == (0, 0)


async def test_short_prompts_pass_long_ones_that_wait_for_their_turn() -> None:
    runner = Recorder()
    open_, _ = opener(await engine_of(runner))
    for name in "abc":
        await open_(request(name, 900))
    await open_(request("short", 60))
    assert runner.begun == ["a", "b", "short"]
    runner.give("a")
    assert runner.begun == ["a", "b", "short", "c"]


async def test_long_prompts_that_are_cached_count_as_short_ones() -> None:
    runner = Recorder(max_num_seqs=50)
    open_, _ = opener(await engine_of(runner))
    for number in range(40):
        await open_(request(f"first{number}", 900))
        runner.give(f"first{number}", cached=890, is_last=True)
    for name in "abcd":
        await open_(request(name, 900))
    assert runner.begun[-4:] == ["a", "b", "c", "d"]


async def test_a_long_prompt_known_to_be_cached_passes_long_ones_that_are_not() -> None:
    runner = Recorder(max_num_seqs=50)
    open_, _ = opener(await engine_of(runner))
    runner.cached = dict.fromkeys("abcd", 0) | {"turn": 890}
    for name in "abcd":
        await open_(request(name, 900))
    await open_(request("turn", 900))
    assert runner.begun == ["a", "b", "turn"]


async def test_waiting_for_a_grammar_counts_as_waiting() -> None:
    runner = Recorder()
    open_, _ = opener(await engine_of(runner))
    runner.may_prepare.clear()
    with pytest.raises(Overloaded):
        await open_(request("a", max_wait_s=0.01))
    runner.may_prepare.set()
    await open_(request("b"))
    assert runner.begun == ["b"]


async def test_any_number_may_wait_where_no_limit_is_set() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = QueuedEngine(runner)
    await engine.start()
    open_, _ = opener(engine)
    for number in range(5000):
        await open_(request(str(number)))
    assert (await engine.stats()).num_waiting == 5000  # one of them within the engine


async def test_bulk_of_a_low_priority_leaves_places_in_the_engine_to_chats() -> None:
    """Else a chat would wait until one of many long answers ends."""
    runner = Recorder(max_num_seqs=64)
    open_, _ = opener(await engine_of(runner))
    for number in range(100):
        await open_(request(f"bulk{number}", priority=1))
        if len(runner.begun) > number:
            runner.give(f"bulk{number}")
    assert len(runner.begun) == 62
    for number in range(3):
        await open_(request(f"chat{number}"))
    assert runner.begun[62:] == ["chat0", "chat1"]
    runner.give("chat0", is_last=True)
    runner.give("chat1", is_last=True)
    assert runner.begun[64:] == ["chat2"]
    for number in range(20):  # also where it is the turn of who has waited longest
        runner.give(f"bulk{number}", is_last=True)
        await open_(request(f"more{number}"))
        assert runner.begun[-1] == f"more{number}"
        runner.give(f"more{number}", is_last=True)


async def test_bulk_of_a_low_priority_leaves_a_part_of_the_queue_to_chats() -> None:
    open_, _ = opener(await engine_of(Recorder(max_num_seqs=1), max_num_waiting=40))
    for number in range(28):  # one of them inside
        await open_(request(f"bulk{number}", priority=1, tenant="a"))
    with pytest.raises(QueueFull):
        await open_(request("more", priority=1, tenant="a"))
    await open_(request("chat", tenant="a"))


async def test_who_does_not_fit_is_told_and_who_prepares_counts() -> None:
    runner = Recorder(max_num_seqs=1)
    engine = await engine_of(runner, max_num_waiting=2)
    open_, _ = opener(engine)
    await open_(request("running"))
    runner.may_prepare.clear()
    preparing = [asyncio.create_task(open_(request(name))) for name in "ab"]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="2 requests are waiting and max_num_waiting is 2"):
        await open_(request("c"))
    runner.may_prepare.set()
    waiting = await asyncio.gather(*preparing)
    with pytest.raises(QueueFull):
        await open_(request("c"))
    engine.close(waiting[0])
    await open_(request("c"))
    assert runner.aborted == []
