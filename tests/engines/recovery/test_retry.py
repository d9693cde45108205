"""What a death of the engine costs a request, and what a request that kills it gets."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.errors import EngineDead, RequestQuarantined
from engines.fleet import Fleet
from engines.process.supervisor import EngineSupervisor, RestartPolicy
from engines.prompt_logprobs import packed_in
from engines.recovery.crash_records import CrashRecords, Level, fingerprint
from engines.recovery.guarded import GuardedEngine

POISON = 666
QUICK = RestartPolicy(first_delay_s=0.05)

Guard = Callable[..., Awaitable[GuardedEngine]]


@pytest.fixture
async def guard(start_client: Any) -> Guard:
    """A guarded client of a supervised engine; as each API process has one."""

    async def make(supervisor: EngineSupervisor, **options: Any) -> GuardedEngine:
        client = await start_client(supervisor)
        return GuardedEngine(
            Fleet([client]), CrashRecords(client.folder / "suspects", 600.0), **options
        )

    return make


def request_of(*prompt: int, max_tokens: int = 4, **changes: Any) -> EngineRequest:
    return EngineRequest(f"r-{prompt}", prompt, SamplingParams(max_tokens, **changes))


async def read(engine: GuardedEngine, request: EngineRequest) -> tuple[int, ...]:
    return tuple([id async for event in engine.generate(request) for id in event.token_ids])


async def read_counted(
    engine: GuardedEngine, request: EngineRequest
) -> tuple[tuple[int, ...], list[int]]:
    """The tokens, and how many restarts the events tell of."""
    events = [event async for event in engine.generate(request)]
    ids = tuple(id for event in events for id in event.token_ids)
    return ids, sorted({event.num_restarts for event in events})


async def has_waiting(engine: GuardedEngine) -> bool:
    return (await engine.stats()).num_waiting > 0


async def outcomes(*works: Any) -> Sequence[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*works, return_exceptions=True)


async def test_a_death_costs_nobody_an_answer_token_shown_or_not(
    start_engine: Any, guard: Guard, until: Any
) -> None:
    supervisor = await start_engine(QUICK, step_s=0.05, max_num_seqs=1)
    engine = await guard(supervisor)
    shown = asyncio.create_task(read_counted(engine, request_of(1, max_tokens=40)))
    waiting = [asyncio.create_task(read(engine, request_of(2, i))) for i in range(3)]

    async def is_full() -> bool:
        stats = await engine.stats()
        return stats.generated_tokens > 1 and stats.num_waiting == 3

    await until(is_full)
    os.kill(supervisor.pid, signal.SIGKILL)
    continued, *answers = await outcomes(shown, *waiting)
    assert continued == ((11, 12, 13) * 13 + (11,), [0, 1])
    assert answers == [(11, 12, 13, 11)] * 3
    assert supervisor.num_restarts == 1


async def test_the_request_that_kills_twice_is_convicted_and_nobody_else(
    start_engine: Any, guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = await start_engine(QUICK, step_s=0.02, faults=[{"token": POISON, "kind": "kill"}])
    engines = [await guard(supervisor), await guard(supervisor)]  # two API processes
    poison, others = request_of(1, POISON), [request_of(2, i) for i in range(6)]
    killer, *answers = await outcomes(*(read(engines[0], r) for r in [poison, *others]))
    assert isinstance(killer, RequestQuarantined)
    assert [len(answer) for answer in answers] == [4] * 6
    assert f"crashed twice while running request {poison.request_id}" in caplog.text
    assert supervisor.num_restarts == 2

    again = await outcomes(*(read(engine, poison) for engine in engines))
    assert all(isinstance(error, RequestQuarantined) for error in again)
    assert "crashed twice" in str(again[0])
    assert [len(a) for a in await outcomes(*(read(engines[0], o) for o in others))] == [4] * 6
    assert supervisor.num_restarts == 2


async def test_a_killer_that_has_shown_tokens_is_convicted_and_its_neighbours_go_on(
    start_engine: Any, guard: Guard
) -> None:
    fault = {"token": POISON, "kind": "kill", "after": 8}
    supervisor = await start_engine(QUICK, step_s=0.005, faults=[fault])
    engine = await guard(supervisor)
    innocent = [request_of(3, i, max_tokens=300) for i in range(3)]
    # The killer comes last: sent again before the others, it could die alone.
    *answers, killer = await outcomes(
        *(read(engine, r) for r in innocent), read(engine, request_of(POISON, max_tokens=50))
    )
    assert isinstance(killer, RequestQuarantined)
    assert answers == [(11, 12, 13) * 100] * 3
    # All ran in both first deaths: the third tells which of them it is.
    assert supervisor.num_restarts == 3
    (refused,) = await outcomes(read(engine, request_of(POISON, max_tokens=50)))
    assert isinstance(refused, RequestQuarantined)
    assert supervisor.num_restarts == 3


async def test_events_of_a_continued_answer_tell_of_its_first_run(
    start_engine: Any, guard: Guard
) -> None:
    supervisor = await start_engine(QUICK, step_s=0.005, block_size=4)
    engine = await guard(supervisor)
    prompt = tuple(range(100, 120))
    await read(engine, request_of(*prompt))  # so that it is in the cache
    num_cached: set[int] = set()
    token_ids: list[int] = []
    async for event in engine.generate(request_of(*prompt, max_tokens=30, logprobs=1)):
        if not token_ids:
            os.kill(supervisor.pid, signal.SIGKILL)
        token_ids += event.token_ids
        num_cached.add(event.num_cached_tokens)
        assert event.logprobs is not None
        assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
    assert token_ids == [11, 12, 13] * 10
    assert num_cached == {16}
    assert supervisor.num_restarts == 1


async def test_an_engine_that_cannot_continue_ends_what_was_shown(
    start_engine: Any, guard: Guard
) -> None:
    supervisor = await start_engine(QUICK, step_s=0.005, capabilities={"lacks": ["continuation"]})
    engine = await guard(supervisor)
    events = engine.generate(request_of(1, max_tokens=999))
    assert (await anext(events)).token_ids[0] == 11
    os.kill(supervisor.pid, signal.SIGKILL)
    with pytest.raises(EngineDead):
        await outlive(events)


async def outlive(events: AsyncGenerator[TokenEvent, None]) -> None:
    async for _ in events:
        pass


async def test_an_engine_that_was_only_silent_has_not_died(
    start_engine: Any, start_client: Any
) -> None:
    supervisor = await start_engine(step_s=0.01)
    client = await start_client(supervisor, heartbeat_timeout_s=0.6)
    suspects = CrashRecords(client.folder / "suspects", 600.0)
    engine, shown = GuardedEngine(Fleet([client]), suspects), 0
    async for event in engine.generate(request_of(1, max_tokens=60)):
        if shown < 9 <= shown + len(event.token_ids):
            os.kill(supervisor.pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(2.5, os.kill, supervisor.pid, signal.SIGCONT)
        shown += len(event.token_ids)
    assert shown == 60
    assert not suspects.are_any
    assert supervisor.num_restarts == 0


async def test_nothing_is_run_again_when_the_server_stops(
    start_engine: Any, guard: Guard, until: Any
) -> None:
    supervisor = await start_engine(step_s=0.05, max_num_seqs=1)
    engine = await guard(supervisor)
    works = [asyncio.create_task(read(engine, request_of(i, max_tokens=999))) for i in range(2)]
    await until(lambda: has_waiting(engine))
    await engine.stop()
    assert [type(error) for error in await outcomes(*works)] == [EngineDead] * 2
    assert not CrashRecords(supervisor.client().folder / "suspects", 600.0).are_any


async def test_a_restart_that_takes_too_long_is_an_error_not_a_hang(
    start_engine: Any, guard: Guard, until: Any
) -> None:
    supervisor = await start_engine(RestartPolicy(first_delay_s=30), step_s=10.0, max_num_seqs=1)
    engine = await guard(supervisor, restart_timeout_s=0.2)
    first = asyncio.create_task(read(engine, request_of(1)))
    waiting = asyncio.create_task(read(engine, request_of(2)))
    await until(lambda: has_waiting(engine))
    os.kill(supervisor.pid, signal.SIGKILL)
    assert isinstance((await outcomes(waiting))[0], EngineDead)
    first.cancel()
    await asyncio.wait([first])


def test_a_fingerprint_is_what_is_computed() -> None:
    asked = request_of(1, 2, seed=3)
    assert fingerprint(asked) == fingerprint(request_of(1, 2, seed=4))
    others = [request_of(1, 3), request_of(1, 2, temperature=0.5), request_of(1, 2, max_tokens=5)]
    assert fingerprint(asked) not in {fingerprint(other) for other in others}


def test_records_are_bounded_in_time_and_number(
    temp_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.recovery.crash_records.MAX_RECORDS", 3)
    suspects = CrashRecords(temp_folder / "suspects", 600.0)
    for key in "abcd":
        suspects.record(key, Level.QUARANTINED, 0)
    assert [suspects.look_up(key).level for key in "abcd"] == [
        Level.CLEAR,
        *[Level.QUARANTINED] * 3,
    ]
    suspects.record("d", Level.SUSPECT, 5)  # another run of the same request: no pardon
    assert suspects.look_up("d").level is Level.QUARANTINED
    soon = CrashRecords(temp_folder / "suspects", 0.0)
    soon.record("e", Level.SUSPECT, 0)
    assert soon.look_up("e").level is Level.CLEAR


def test_a_folder_that_cannot_be_written_holds_nothing_against_anybody(
    temp_folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (temp_folder / "suspects").write_text("a file")
    suspects = CrashRecords(temp_folder / "suspects", 600.0)
    suspects.record("a", Level.QUARANTINED, 0)
    assert not suspects.are_any
    assert "cannot be recorded" in caplog.text


async def test_log_probabilities_of_the_prompt_come_once_whenever_the_engine_dies(
    start_engine: Any, guard: Guard, until: Any
) -> None:
    supervisor = await start_engine(QUICK, step_s=0.05, max_num_seqs=1)
    engine = await guard(supervisor)

    async def scores(request: EngineRequest) -> list[int]:
        return [
            len(part.ranks) // 4
            async for event in engine.generate(request)
            for part in packed_in(event) or ()
        ]

    shown = asyncio.create_task(scores(request_of(1, 2, 3, max_tokens=40, prompt_logprobs=1)))
    waiting = asyncio.create_task(scores(request_of(4, 5, prompt_logprobs=1)))

    async def is_shown() -> bool:
        stats = await engine.stats()
        return stats.generated_tokens > 1 and stats.num_waiting == 1

    await until(is_shown)
    os.kill(supervisor.pid, signal.SIGKILL)
    assert await outcomes(shown, waiting) == [[2], [1]]
    assert supervisor.num_restarts == 1
