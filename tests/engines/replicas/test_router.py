"""Requests go where their prompt is cached, as long as no replica is left idle for it."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines import fleet as routers
from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.fleet import BLOCK, Replica, ReplicaRouter
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import RetryAttempt


def request_of(prompt: tuple[int, ...], salt: str | None = None) -> EngineRequest:
    return EngineRequest("r", prompt, SamplingParams(8), cache_salt=salt)


def prompt_of(name: int, num_blocks: int) -> tuple[int, ...]:
    return (name,) * (num_blocks * BLOCK)


IDLE = {0: 0, 1: 0, 2: 0}


def test_a_conversation_stays_where_its_prefix_is_and_others_take_turns() -> None:
    router = ReplicaRouter()
    first = [router.choose(request_of(prompt_of(name, 2)), IDLE) for name in range(3)]
    assert sorted(first) == [0, 1, 2]
    for turn in range(3, 6):
        for name in (2, 0, 1):
            assert router.choose(request_of(prompt_of(name, turn)), IDLE) == first[name]


def test_the_longest_prefix_counts_and_salts_share_nothing() -> None:
    router = ReplicaRouter()
    home = router.choose(request_of(prompt_of(7, 4)), {0: 0, 1: 0})
    other = router.choose(request_of(prompt_of(8, 1)), {0: 0, 1: 0})
    assert other != home
    assert router.choose(request_of(prompt_of(7, 2) + prompt_of(9, 2)), {0: 0, 1: 0}) == home
    loads = {home: 1, other: 0}
    assert router.choose(request_of(prompt_of(7, 4), salt="b"), loads) == other


def test_imbalance_is_bounded() -> None:
    router, loads = ReplicaRouter(), {0: 0, 1: 0, 2: 0}
    for _ in range(90):
        loads[router.choose(request_of(prompt_of(1, 4)), loads)] += 1
        assert max(loads.values()) <= max(min(loads.values()) * 1.25, min(loads.values()) + 4) + 1
    assert min(loads.values()) > 20


def test_a_replica_that_is_away_is_not_chosen_and_has_forgotten_when_it_returns() -> None:
    router = ReplicaRouter()
    home = router.choose(request_of(prompt_of(1, 4)), {0: 0, 1: 0})
    away = {1 - home: 9}
    assert router.choose(request_of(prompt_of(1, 4)), away) == 1 - home
    router.forget(home)
    assert router.choose(request_of(prompt_of(1, 4)), {0: 0, 1: 0}) == 1 - home


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routers, "MAX_BLOCKS", 4)
    record = routers.PrefixRecord()
    record.add([1, 2, 3])
    record.add([1, 2, 4, 5])
    assert record.num_cached([1, 2, 3]) == 2
    assert record.num_cached([1, 2, 4, 5]) == 4


def test_prefix_hits_beat_round_robin_on_conversations_of_several_turns() -> None:
    """40 conversations of 6 turns, their turns mixed; hits as replicas that never forget have."""
    rng = random.Random(0)
    turns = [name for name in range(40) for _ in range(6)]
    rng.shuffle(turns)

    def hits(choose: object) -> float:
        seen: list[set[tuple[int, int]]] = [set(), set()]
        lengths, num_hits, total = dict.fromkeys(range(40), 1), 0, 0
        for number, name in enumerate(turns):
            lengths[name] += 2
            chosen = choose(number, request_of(prompt_of(name, lengths[name])))  # type: ignore[operator]
            blocks = {(name, block) for block in range(lengths[name])}
            num_hits += len(blocks & seen[chosen])
            total += len(blocks)
            seen[chosen] |= blocks
        return num_hits / total

    router = ReplicaRouter()
    routed = hits(lambda _, request: router.choose(request, {0: 0, 1: 0}))
    in_turn = hits(lambda number, _: number % 2)
    assert routed == pytest.approx(hits(lambda _, __: 0))  # as good as one replica for all
    assert routed > 1.2 * in_turn


def test_of_engines_as_busy_the_one_with_the_least_to_compute_gets_a_prompt() -> None:
    """Its first token waits for the prompts before it."""
    router = ReplicaRouter()

    def chosen(name: int, loads: dict[int, int], pending: dict[int, int]) -> int:
        return router.choose(request_of(prompt_of(name, 5)), loads, pending)

    assert chosen(1, {0: 10, 1: 12, 2: 11}, {0: 8000, 1: 0, 2: 500}) == 1
    assert chosen(2, {0: 10, 1: 15, 2: 11}, {0: 8000, 1: 0, 2: 500}) == 2, "1 runs too many more"
    assert router.num_new == 5 * BLOCK
    home = {0: 12, 1: 12, 2: 12}
    assert chosen(1, home, {0: 0, 1: 90_000, 2: 0}) == 1, "its prefix is there"
    assert router.num_new == 0


def test_a_burst_is_spread_evenly_whatever_is_computed_first() -> None:
    router, chance = ReplicaRouter(), random.Random(1)
    loads, pending = dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 0)
    for name in range(512):
        chosen = router.choose(request_of((name, *prompt_of(1, 2))), loads, pending)
        loads[chosen] += 1
        pending[chosen] += router.num_new
        if chance.random() < 0.2:
            pending[chance.randrange(4)] = 0
    assert max(loads.values()) - min(loads.values()) <= 5


def test_a_prompt_is_to_be_computed_until_its_first_token_or_its_end(tmp_path: Path) -> None:
    replica: Replica[Any] = Replica(0, SimpleNamespace(life=1))
    replica.num_new = 700
    begun, ended = (RetryAttempt(request_of((1, 2)), CrashRecords(tmp_path)) for _ in range(2))
    begun.run_on(replica)
    ended.run_on(replica)
    assert (replica.load, replica.num_pending) == (2, 1400)
    begun.take(TokenEvent((5,)))
    begun.take(TokenEvent((6,)))
    assert (replica.load, replica.num_pending) == (2, 700)
    for attempt in (ended, begun):
        attempt.leave()
    assert (replica.load, replica.num_pending) == (0, 0)
