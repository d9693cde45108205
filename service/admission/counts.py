"""What runs for each caller and what each owes: in one process, or of all API workers."""

from __future__ import annotations

from collections import Counter
from typing import Protocol


class Counts(Protocol):
    """Of callers, by a key."""

    def enter(self, key: str, at_once: int) -> bool:
        """Count one that runs, if fewer than `at_once` do."""

    def leave(self, key: str) -> None:
        """One that was counted here runs no more."""

    def add(self, key: str, amount: int) -> None:
        """Note an amount until it is taken."""

    def pop(self, key: str) -> int: ...


class OwnCounts(Counts):
    """Those of the only process."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()  # never 0
        self._noted: Counter[str] = Counter()

    def enter(self, key: str, at_once: int) -> bool:
        if self._running[key] >= at_once:
            return False
        self._running[key] += 1
        return True

    def leave(self, key: str) -> None:
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]

    def add(self, key: str, amount: int) -> None:
        self._noted[key] += amount

    def pop(self, key: str) -> int:
        return self._noted.pop(key, 0)
