"""The API workers of one server keep callers to their limits together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auth.base import PrincipalLimits
from service.admission import shared_counts
from service.admission.concurrency import ConcurrencyLimit
from service.admission.counters import MinuteCounters
from service.admission.gate import Gate, Quotas
from service.admission.shared_counts import SharedCounts
from service.shared_files import LIMIT_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "limits"
    path.write_bytes(bytes(LIMIT_BYTES))
    return path


async def test_workers_count_requests_together_and_tell_the_whole_limit(
    make_runtime: Any, make_client: Any, hello: str, chat_body: Any, path: Path
) -> None:
    clients = []
    for number in range(3):
        counts = SharedCounts(path, number)
        quotas = Quotas(PrincipalLimits(requests_per_min=4), MinuteCounters(shared=counts))
        clients.append(await make_client(make_runtime(hello, gate=Gate(quotas=quotas))))
    answers = [
        await clients[n % 3].post("/v1/chat/completions", json=chat_body()) for n in range(5)
    ]
    assert [answer.status_code for answer in answers] == [200] * 4 + [429]
    left = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
    assert left == ["3", "2", "1", "0", "0"]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "4"


async def test_places_are_of_all_workers_and_those_of_a_dead_one_come_free(path: Path) -> None:
    workers = [SharedCounts(path, number) for number in range(2)]
    dead, living = (ConcurrencyLimit(counts=counts) for counts in workers)
    async with dead.hold("eve", 3), living.hold("eve", 3), dead.hold("eve", 3):
        async with living.hold("eve", 3) as has_place:
            assert not has_place
        async with living.hold("ann", 1) as has_place:
            assert has_place
        SharedCounts(path, 0)  # the dead one's successor
        async with living.hold("eve", 3), living.hold("eve", 3) as has_place:
            assert has_place


async def test_what_a_caller_owes_one_worker_is_taken_by_the_next(path: Path) -> None:
    first, second = SharedCounts(path, 0), SharedCounts(path, 1)
    first.add("owed:ann", 70)
    second.add("owed:ann", 5)
    assert second.pop("owed:ann") == 75
    assert first.pop("owed:ann") == 0


async def test_shared_windows_pass_as_those_of_one_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_790_000_010.0
    monkeypatch.setattr("time.time", lambda: now)
    own = MinuteCounters()
    both = [MinuteCounters(shared=SharedCounts(path, number)) for number in range(2)]
    for step in range(120):
        expected = await own.take("requests", "ann", 7, 1)
        found = await both[step % 2].take("requests", "ann", 7, 1)
        assert (found.limit, found.remaining) == (expected.limit, expected.remaining)
        assert found.reset_s == pytest.approx(expected.reset_s, abs=1e-4)
        assert found.retry_s == (expected.retry_s and pytest.approx(expected.retry_s, abs=1e-4))
        now += (1.5, 0.2, 7.0, 31.0)[step % 4]


def test_more_callers_than_there_is_room_for_lose_the_oldest_counts_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_counts, "_NUM_SETS", 8)
    counts = SharedCounts(path, 0)
    assert counts.enter("running:first", 1)
    for number in range(2_000):
        counts.add(f"owed:{number}", 1)
    assert not counts.enter("running:first", 1)
    assert counts.pop("owed:1999") == 1
