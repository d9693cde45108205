"""LoRA adapters on all ranks: each is sent whole, and each rank keeps what it adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from engines.native.backends.base import Addend
from engines.native.backends.cpu.adapters import CpuAdapters
from engines.native.backends.cpu.exchange import First


class RankAdapter(NamedTuple):
    """Told between two steps: an adapter that they are computed with from now on, or no more."""

    key: str
    changes: Mapping[str, Addend] | None

    def change(self, own: CpuAdapters) -> None:
        if self.changes is None:
            own.remove(self.key)
        else:
            own.put(self.key, own.prepared(self.changes))


class RankAdapters:
    """The first rank's; implements engines.native.backends.base.AdapterTable."""

    has_experts: ClassVar[bool] = True

    def __init__(self, own: CpuAdapters, others: First) -> None:
        self._own, self._others = own, others

    def num_bytes(self, rank: int) -> int:
        return self._own.num_bytes(rank) * self._others.size

    def prepared(self, changes: Mapping[str, Addend]) -> Mapping[str, Addend]:
        return changes

    def put(self, key: str, prepared: Mapping[str, Addend]) -> None:
        self._tell(RankAdapter(key, prepared))

    def remove(self, key: str) -> None:
        self._tell(RankAdapter(key, None))

    def _tell(self, told: RankAdapter) -> None:
        self._others.tell(told)
        told.change(self._own)
