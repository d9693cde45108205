"""Several API workers send a prompt to the engine that has it, whichever of them sent it there."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines.base import EngineRequest, SamplingParams
from engines.fleet import BLOCK, ReplicaRouter
from engines.shared_routes import WAYS, SharedRoutes, size_of

PROMPT = """
import sys
from engines.base import EngineRequest, SamplingParams
from engines.fleet import _blocks
print(*_blocks(EngineRequest("r", tuple(range(200)), SamplingParams(8))))
"""


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, size_of(1024, 4))


def request_of(prompt: tuple[int, ...]) -> EngineRequest:
    return EngineRequest("r", prompt, SamplingParams(8))


def test_a_conversation_is_found_where_another_worker_sent_it(memory: mmap.mmap) -> None:
    workers = [SharedRoutes(memory, number) for number in range(3)]
    routers = [ReplicaRouter(worker) for worker in workers]
    prompts = [(name,) * (5 * BLOCK) for name in range(12)]
    loads = dict.fromkeys(range(4), 0)
    homes = [routers[n % 3].choose(request_of(prompt), loads) for n, prompt in enumerate(prompts)]
    for turn in (6, 7):
        for n, prompt in enumerate(prompts):
            longer = request_of(prompt + (n,) * (turn * BLOCK))
            assert routers[(n + turn) % 3].choose(longer, loads) == homes[n]


def test_a_load_is_that_of_all_workers_and_a_successor_begins_at_none(memory: mmap.mmap) -> None:
    first, second = SharedRoutes(memory, 0), SharedRoutes(memory, 63)
    first.tell(2, 5, 70)
    second.tell(2, 4, 8)
    second.tell(3, 1)
    assert [first.load(number) for number in range(4)] == [(0, 0), (0, 0), (9, 78), (1, 0)]
    SharedRoutes(memory, 0)
    assert second.load(2) == (4, 8)


def test_a_restarted_engine_is_forgotten_once_however_late_a_worker_sees_it(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    early, late = SharedRoutes(memory, 0), SharedRoutes(memory, 1)
    early.add(1, [7, 8])
    early.add(2, [7])
    now += 10
    early.forget(1, life=5)
    assert late.num_cached([7, 8], [1, 2]) == {1: 0, 2: 1}
    now += 10
    early.add(1, [7, 8])
    now += 10
    late.forget(1, life=5)
    assert early.num_cached([7, 8], [1, 2]) == {1: 2, 2: 1}


def test_of_a_full_set_the_oldest_block_makes_room(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    routes = SharedRoutes(memory, 0)
    num_sets = routes._num_sets
    blocks = [3 + n * num_sets for n in range(WAYS + 1)]
    for block in blocks[:WAYS]:
        now += 1
        routes.add(0, [block])
    now += 1
    routes.add(1, [blocks[0]])  # used again
    routes.add(0, [blocks[-1]])
    cached = [routes.num_cached([block], [0])[0] for block in blocks]
    assert cached == [1, 0, *[1] * (WAYS - 1)]


def test_workers_of_one_seed_hash_a_prompt_alike() -> None:
    environment = os.environ | {"PYTHONHASHSEED": "123456"}
    found = {
        subprocess.run(
            [sys.executable, "-c", PROMPT], env=environment, check=True, capture_output=True,
            cwd=Path(__file__).parents[3],
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    assert len(found) == 1
    assert len(found.pop().split()) == 200 // BLOCK


def test_many_cached_tokens_keep_a_turn_on_a_busy_engine_until_it_is_overloaded() -> None:
    router, long = ReplicaRouter(), tuple(range(20_480))
    home = router.choose(request_of(long), {0: 0, 1: 0})
    for more, is_kept in ((39, True), (41, False)):
        kept = ReplicaRouter()
        assert kept.choose(request_of(long), {0: 0, 1: 0}) == home
        loads = {home: more, 1 - home: 0}
        assert (kept.choose(request_of(long + (1,) * BLOCK), loads) == home) == is_kept
