"""Where responses are kept: the contract of every store. No HTTP here.

Records are bounded by age and by total size. When there is no room, the owner who has most loses
the least recently used one: no owner can drive out those who have less.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class StoreError(Exception):
    """The store cannot be reached or written; the message names it."""


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
    clock: Callable[[], float] = field(default=time.time)


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """One stored response: the response object, its input, and whose it is."""

    id: str
    owner: str  # the tenant who made it and alone may read it; empty when the API is open
    response: bytes  # the response object as JSON, without output until it is final
    input: bytes  # the input items as a JSON list
    is_final: bool = True
    previous_id: str | None = None
    idle_s: float = 0.0  # seconds since its run was last heard of
    beat_at: float = field(default=0.0, compare=False)  # when that was, by the run's clock

    @property
    def size(self) -> int:
        """Bytes that count against the store's bound."""
        return len(self.response) + len(self.input)


class ResponseStore(Protocol):
    """Keeps responses, and the pieces of those that are being written."""

    async def lasts(self) -> bool:
        """Whether what is put now would be kept, and outlive this process."""
        ...

    async def put(self, record: ResponseRecord, pieces: bytes = b"") -> None:
        """Add a record, with its pieces when it is final already."""
        ...

    async def extend(self, id: str, pieces: bytes) -> bool:
        """Add pieces (may be empty) to a running response; false when it should stop."""
        ...

    async def finish(self, id: str, response: bytes) -> bool:
        """Make a running response final; false when it was so before, or is gone."""
        ...

    async def get(self, id: str, owner: str) -> ResponseRecord:
        """The record of this id and owner; raises MissingRecord."""
        ...

    async def pieces(self, id: str, start: int = 0) -> list[bytes]:
        """What put and extend were given, from the batch numbered `start` on."""
        ...

    async def request_stop(self, id: str) -> None:
        """Ask the run to stop, in whichever process it is."""
        ...

    async def delete(self, id: str, owner: str) -> None:
        """Remove the record of this id and owner; raises MissingRecord."""
        ...

    async def close(self) -> None:
        """Release everything; may be called twice."""
        ...
