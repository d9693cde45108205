"""Where responses are kept: the contract of every store. No HTTP here.

Records are bounded by age and by total size. When there is no room, the owner who has most loses
the least recently used one: no owner can drive out those who have less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

# A release without jobs takes a running response for dead 15 s after this time: never.
NEVER: Final = 1e11


class MissingRecord(Exception):
    """No record under this id, or not of this owner."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


@dataclass(frozen=True, slots=True)
class StoreBounds:
    """How much is kept."""

    max_age_s: float = 30 * 24 * 3600.0  # since the last use
    max_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """One stored response: the response object, its input, and whose it is."""

    id: str
    owner: str  # the tenant who made it and alone may read it; empty when the API is open
    response: bytes  # the response object as JSON, without output until it is final
    input: bytes  # the input items as a JSON list
    is_final: bool = True
    previous_id: str | None = None
    beat_at: float = NEVER  # when a release without jobs last wrote it

    @property
    def size(self) -> int:
        """Bytes that count against the store's bound."""
        return len(self.response) + len(self.input)


class PastRecords(Protocol):
    """Where the responses are that a request may go back to."""

    async def get(self, id: str, owner: str) -> ResponseRecord:
        """The record of this id and owner; raises MissingRecord."""


class ResponseStore(PastRecords, Protocol):
    """Keeps responses, and the pieces of those that are being written."""

    async def lasts(self) -> bool:
        """Whether what is put now would be kept, and outlive this process."""

    async def put(self, record: ResponseRecord, pieces: bytes = b"") -> None:
        """Add a record, with its pieces when it is final already."""

    async def extend(self, id: str, pieces: bytes, token_ids: bytes = b"", fence: int = 0) -> bool:
        """Add pieces (may be empty), and the tokens that they came from, to a running response.

        False when it is final or gone, or when a call for it had a higher `fence`: the number of
        the claim (service/jobs) for which it is written.
        """

    async def finish(self, id: str, response: bytes, pieces: bytes = b"", fence: int = 0) -> bool:
        """Make a running response final, with its last pieces; false as for extend()."""

    async def pieces(self, id: str, start: int = 0) -> list[bytes]:
        """What put and extend were given, from the batch numbered `start` on."""

    async def token_ids(self, id: str) -> bytes:
        """The tokens of a running response that extend() was given, in order."""

    async def delete(self, id: str, owner: str) -> None:
        """Remove the record of this id and owner; raises MissingRecord."""
