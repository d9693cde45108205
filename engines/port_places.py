"""Who has a place at a port: strangers and peers are counted apart.

A stranger has proved nothing yet. One that comes when all places of strangers are taken drives out
another stranger, never a peer. A connection that becomes a peer may drive out a peer that rests.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

C = TypeVar("C")


class PortPlaces(Generic[C]):
    """The connections of one port. The caller closes those that are returned."""

    def __init__(self, most_strangers: int, most_peers: int) -> None:
        self._most_strangers, self._most_peers = most_strangers, most_peers
        self._strangers: dict[C, str] = {}  # with their addresses, the longest here first
        self._peers: dict[C, None] = {}
        self._resting: dict[C, None] = {}  # those of them, the longest idle first

    def __len__(self) -> int:
        return len(self._strangers) + len(self._peers)

    def enter(self, connection: C, address: str) -> C | None:
        """Take a stranger; another one that makes room: the longest here, of the address that has
        most."""
        dropped = None
        if len(self._strangers) >= self._most_strangers:
            num_of = Counter(self._strangers.values())
            most = max(num_of.values())
            dropped = next(each for each, of in self._strangers.items() if num_of[of] == most)
            del self._strangers[dropped]
        self._strangers[connection] = address
        return dropped

    def prove(self, connection: C) -> C | None:
        """Make a stranger a peer; the resting peer that makes room, or itself if there is no
        room, or it has been driven out."""
        if self._strangers.pop(connection, None) is None:
            return connection
        dropped = None
        if len(self._peers) >= self._most_peers:
            dropped = next(iter(self._resting), None)
            if dropped is None:
                return connection
            self.leave(dropped)
        self._peers[connection] = None
        return dropped

    def rest(self, connection: C) -> None:
        """A peer has nothing to do."""
        if connection in self._peers:
            self._resting[connection] = None

    def work(self, connection: C) -> bool:
        """A peer has something to do again; whether it still has its place."""
        self._resting.pop(connection, None)
        return connection in self._peers

    def leave(self, connection: C) -> None:
        self._strangers.pop(connection, None)
        self._peers.pop(connection, None)
        self._resting.pop(connection, None)
