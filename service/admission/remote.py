"""Counts that several servers share: the contract of what keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from service.store.guard import OutageGuard


class RemoteError(Exception):
    """It cannot be asked now; `cause` is what its library says."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Windows(Protocol):
    """Counts in the running and the last window of a key, as storages of `limits` have them."""

    async def acquire_sliding_window_entry(
        self, key: str, limit: int, expiry: int, amount: int
    ) -> bool:
        """Count the amount if the window has room for it."""

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """The counts of the last and the running window, each with the seconds it still counts."""


class RemoteWindows(Windows, Protocol):
    """Windows of all servers; each question raises RemoteError."""

    async def close(self) -> None: ...


class RemotePlaces(Protocol):
    """The running requests of all servers. A place is a lease, which ends with its process."""

    async def take(self, who: str, at_once: int, lease: str) -> bool:
        """Take one of the caller's places, if one is free; raises RemoteError."""

    async def give_back(self, lease: str, *, is_away: bool) -> None:
        """Renew a lease no more, and give it back unless the server is away; raises RemoteError."""

    async def close(self) -> None:
        """Stop renewing leases; the remaining ones expire."""


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """What counts for all servers."""

    title: str  # in the log
    windows: RemoteWindows
    places: RemotePlaces

    def guard(self) -> OutageGuard:
        """The guard that leaves it alone for a while after a failure."""
        return OutageGuard(self.title, "until it is back, limits are counted per server")
