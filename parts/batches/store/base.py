"""Where files and batches are noted: the contract of both stores. What files hold lies on disk.

Each is an object of a tenant: a JSON document as clients see it, and what the store has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

Kind = Literal["file", "batch"]


class MissingObject(Exception):
    """No object under this id, or not of this tenant."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


class ObjectInUse(Exception):
    """A file that a batch has yet to read."""


class StorageFull(Exception):
    """There is no room for more bytes."""

    def __init__(self, *, is_of_tenant: bool = False) -> None:
        super().__init__()
        self.is_of_tenant = is_of_tenant


@dataclass(frozen=True, slots=True)
class StorageBounds:
    """How many bytes of files are kept."""

    max_bytes: int = 10 << 30

    @property
    def max_tenant_bytes(self) -> int:
        """A tenant leaves room for others."""
        return self.max_bytes // 2


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One file or batch."""

    id: str
    kind: Kind
    tenant: str  # empty when the API is open
    document: bytes  # the object as JSON
    lasts_s: float  # after which it is removed
    purpose: str = ""  # of a file
    content: str = ""  # the name of a file's content in the folder
    num_bytes: int = 0  # of it
    uses: str = ""  # of a batch that has not ended: its input file
    cancelled_at: int = 0  # when a client asked to cancel a batch, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a tenant's objects; `more`: there are others behind them."""

    objects: tuple[StoredObject, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class Query:
    """Which objects of a tenant are listed."""

    kind: Kind
    tenant: str
    limit: int
    after: str | None = None  # raises MissingObject where it is none of the tenant's
    is_ascending: bool = False
    purpose: str | None = None


class ObjectStore(Protocol):
    """The objects; each call is one transaction, and raises StoreError."""

    async def put(self, new: StoredObject) -> None:
        """Add an object. Raises StorageFull; MissingObject where what it uses is not there."""

    async def get(self, kind: Kind, id: str, tenant: str) -> StoredObject:
        """The object of this id and tenant; raises MissingObject."""

    async def page(self, query: Query) -> Page:
        """List objects by when they were added; raises MissingObject."""

    async def delete(self, kind: Kind, id: str, tenant: str) -> StoredObject:
        """Remove an object; raises MissingObject and ObjectInUse."""

    async def write(self, id: str, fence: int, document: bytes | None, num_bytes: int = 0) -> bool:
        """Note how far a batch is, and how much it has written; false when it has ended, is gone,
        or has a later writer."""

    async def finish(
        self, id: str, fence: int, document: bytes, files: Sequence[StoredObject]
    ) -> bool:
        """End a batch, and add its files; false as for write()."""

    async def cancel(self, id: str, tenant: str, at: int) -> StoredObject:
        """Note that a batch is to be cancelled, unless it has ended; raises MissingObject."""

    async def room(self, tenant: str) -> int:
        """How many bytes the tenant may add."""

    async def sweep(self, limit: int) -> list[str]:
        """Remove objects whose time is over; returns the contents of files that went."""


NUM_SWEPT: Final = 100
