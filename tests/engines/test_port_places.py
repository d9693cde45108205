"""Strangers drive out strangers; a peer has its place whatever they do."""

from __future__ import annotations

from engines.port_places import PortPlaces


def places(most_strangers: int = 3, most_peers: int = 2) -> PortPlaces[str]:
    return PortPlaces(most_strangers, most_peers)


def test_a_stranger_drives_out_the_one_that_was_there_longest() -> None:
    few = places()
    assert [few.enter(name, "192.0.2.1") for name in "abcde"] == [None, None, None, "a", "b"]
    assert len(few) == 3


def test_whoever_has_most_makes_room() -> None:
    """Those of one address cannot drive out those of another."""
    few = places()
    assert few.enter("theirs", "192.0.2.2") is None
    assert [few.enter(name, "192.0.2.1") for name in "abcd"] == [None, None, "a", "b"]
    assert few.prove("theirs") is None


def test_no_stranger_drives_out_a_peer() -> None:
    few = places()
    for name in ("one", "two"):
        few.enter(name, "192.0.2.1")
        assert few.prove(name) is None
    few.rest("one")
    dropped = {few.enter(str(number), "192.0.2.1") for number in range(80)}
    assert not dropped & {"one", "two"}
    assert few.work("one")
    assert len(few) == 5


def test_a_peer_makes_room_for_a_peer_only_while_it_rests() -> None:
    few = places()
    for name in ("one", "two", "three", "four"):
        few.enter(name, "192.0.2.1")
        few.prove(name) if name in ("one", "two") else None
    assert few.prove("three") == "three", "all peers are in use"
    few.rest("two")
    few.rest("one")
    assert few.prove("four") == "two"
    assert not few.work("two")
    assert few.work("one")


def test_one_that_was_driven_out_proves_nothing_any_more() -> None:
    few = places()
    for name in "abcd":
        few.enter(name, "192.0.2.1")
    assert few.prove("a") == "a"
    few.leave("d")
    few.rest("d")
    assert not few.work("d")
