"""How much work a request may cost whoever walks what a client sent.

What is small to send can be large to walk: references that double at every level, parts that
are merged one by one, texts that are written once for each time they are referred to. So walking
spends from a budget, in units of about a tenth of a microsecond to a microsecond, and ends with
an error of the client's when it is used up.
"""

from __future__ import annotations


class OverBudget(Exception):
    """More was wanted than there was."""

    def __init__(self, limit: int, unit: str) -> None:
        super().__init__(f"more than {limit} {unit}")
        self.limit = limit
        self.unit = unit


class Budget:
    """So many units of one kind, to be spent once."""

    __slots__ = ("_left", "limit", "unit")

    def __init__(self, limit: int, unit: str) -> None:
        self.limit = limit
        self.unit = unit
        self._left = limit

    @property
    def spent(self) -> int:
        """How many have been taken."""
        return self.limit - self._left

    def spend(self, number: int = 1) -> None:
        """Take so many; raises OverBudget once more than all have been taken."""
        self._left -= number
        if self._left < 0:
            raise OverBudget(self.limit, self.unit)
