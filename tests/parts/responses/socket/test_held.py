"""What connections hold is bounded, and the least recently used makes room."""

from __future__ import annotations

import pytest

from parts.responses.socket.held import MOST_LANES, HeldResponses, PastOfTurn
from parts.responses.store.base import MissingRecord, ResponseRecord
from parts.responses.store.sqlite import SqliteStore
from service.store.sqlite import SqliteDatabase


def record(id: str, size: int = 10, previous_id: str | None = None) -> ResponseRecord:
    return ResponseRecord(id, "me", b"x" * size, b"", previous_id=previous_id)


def test_a_lane_holds_its_last_response_alone() -> None:
    held = HeldResponses()
    held.put((1, None), record("a"), ())
    held.put((1, None), record("b"), ())
    held.put((1, "lane"), record("c"), ())
    assert held.find(1, "a") is None
    assert held.find(1, "b") is not None
    assert held.find(1, "c") is not None
    assert held.find(2, "b") is None
    assert held.num_bytes == 20


def test_a_connection_holds_so_many_bytes_and_lanes() -> None:
    held = HeldResponses(most_bytes=100)
    held.put((1, None), record("whole", 101), ())
    assert held.num_bytes == 0
    held.put((1, "a"), record("a", 60), ())
    held.put((1, "b"), record("b", 40), ())
    held.put((1, "c"), record("c", 30, "b"), (record("b", 20),))
    assert (held.find(1, "a"), held.num_bytes) == (None, 90)
    for number in range(MOST_LANES + 5):
        held.put((2, str(number)), record(f"r{number}", 1), ())
    assert held.find(2, "r4") is None
    assert held.find(2, "r5") is not None


def test_all_connections_together_hold_so_many() -> None:
    held = HeldResponses(most_bytes=50, most_bytes_of_all=100)
    for number in range(3):
        held.put((number, None), record(f"r{number}", 40), ())
    assert held.find(0, "r0") is None
    assert held.num_bytes == 80
    held.leave(1)
    held.evict(2, "r2")
    assert held.num_bytes == 0


async def test_a_chain_is_followed_to_what_is_stored() -> None:
    database = SqliteDatabase()
    store, held = SqliteStore(database), HeldResponses()
    await store.put(record("stored"))
    held.put((1, None), record("b", previous_id="a"), (record("a", previous_id="stored"),))
    past = PastOfTurn(held, 1, store)
    with pytest.raises(MissingRecord):  # the last one alone can be continued
        await past.get("a", "me")
    assert (await past.get("b", "me")).previous_id == "a"
    assert (await past.get("a", "me")).previous_id == "stored"
    assert (await past.get("stored", "me")).id == "stored"
    assert [each.id for each in past.records] == ["b", "a"]
    with pytest.raises(MissingRecord):
        await past.get("b", "another")
    await database.close()
