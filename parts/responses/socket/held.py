"""What connections hold: the last response of each lane, so that the next one can continue it.

It need not be stored anywhere else. A response that is held has with it the earlier ones that it
goes back to, unless those are stored.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from parts.responses.store.base import MissingRecord, PastRecords, ResponseRecord

MOST_BYTES: Final = 16 << 20  # of one connection
MOST_LANES: Final = 64  # of one connection
MOST_BYTES_OF_ALL: Final = 256 << 20  # of an API worker's

Lane = tuple[int, str | None]  # the number of its connection, and its stream_id
NO_RECORDS: Final[tuple[ResponseRecord, ...]] = ()


@dataclass(frozen=True, slots=True)
class HeldChain:
    """A response and those that it goes back to, the newest first."""

    records: tuple[ResponseRecord, ...]
    size: int

    @property
    def id(self) -> str:
        return self.records[0].id


class HeldResponses:
    """The chains of all connections of an API worker; the least recently used make room."""

    def __init__(
        self, most_bytes: int = MOST_BYTES, most_bytes_of_all: int = MOST_BYTES_OF_ALL
    ) -> None:
        self._most = most_bytes
        self._most_of_all = most_bytes_of_all
        self._order: OrderedDict[Lane, int] = OrderedDict()  # of all, with their bytes
        self._chains: dict[int, dict[str | None, HeldChain]] = {}  # by connection, the oldest first
        self.num_bytes = 0

    def put(self, lane: Lane, record: ResponseRecord, earlier: tuple[ResponseRecord, ...]) -> None:
        """Hold a lane's last response, and let go of the one before."""
        self._drop(lane)
        records = (record, *earlier)
        chain = HeldChain(records, sum(each.size for each in records))
        if chain.size > self._most:
            return
        connection, stream_id = lane
        chains = self._chains.setdefault(connection, {})
        chains[stream_id] = chain
        self._order[lane] = chain.size
        self.num_bytes += chain.size
        while len(chains) > MOST_LANES or sum(each.size for each in chains.values()) > self._most:
            self._drop((connection, next(iter(chains))))
        while self.num_bytes > self._most_of_all:
            self._drop(next(iter(self._order)))

    def find(self, connection: int, id: str) -> HeldChain | None:
        """What a connection holds of a response that is the last of one of its lanes."""
        chains = self._chains.get(connection, {}).values()
        return next((chain for chain in chains if chain.id == id), None)

    def evict(self, connection: int, id: str) -> None:
        """Let go of a response that could not be continued."""
        for stream_id, chain in list(self._chains.get(connection, {}).items()):
            if chain.id == id:
                self._drop((connection, stream_id))

    def leave(self, connection: int) -> None:
        """Let go of all that a connection held."""
        for stream_id in list(self._chains.get(connection, {})):
            self._drop((connection, stream_id))

    def _drop(self, lane: Lane) -> None:
        size = self._order.pop(lane, None)
        if size is None:
            return
        self.num_bytes -= size
        connection, stream_id = lane
        chains = self._chains[connection]
        del chains[stream_id]
        if not chains:
            del self._chains[connection]


class PastOfTurn:
    """What a turn goes back to: a chain that its connection holds, and stored responses.

    Implements parts.responses.store.base.PastRecords.
    """

    def __init__(self, held: HeldResponses, connection: int, store: PastRecords) -> None:
        self._held = held
        self._connection = connection
        self._store = store
        self.records = NO_RECORDS  # of the chain that is continued

    async def get(self, id: str, owner: str) -> ResponseRecord:
        if not self.records and (chain := self._held.find(self._connection, id)) is not None:
            self.records = chain.records
        found = next((record for record in self.records if record.id == id), None)
        if found is None:
            return await self._store.get(id, owner)
        if found.owner != owner:
            raise MissingRecord(id)
        return found
