"""How the ranks of one model put together what each has computed, on the CPU.

The first rank is a star's centre: it adds up the parts in the order of the ranks and hands out the
sum, so that all have the same bits. A connection ends with its process, so a wait for a rank that
has crashed ends at once.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol, TypeVar

import torch
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.backends.base import RankLost

_SLOW_S: Final = 5.0  # a rank that takes longer for its part is named in the log

log = logging.getLogger(__name__)

T = TypeVar("T")


class RankExchange(Protocol):
    """One rank's side. All ranks make the same calls in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' tensors of this shape; overwrites `part`."""

    def join(self, part: Tensor) -> Tensor:
        """On the first rank all ranks' columns side by side, elsewhere the part itself."""

    def agree(self, decide: Callable[[], int]) -> int:
        """Once all ranks have come to this: what the first one decides."""


class Alone:
    """One rank, which has all there is."""

    rank, size = 0, 1

    def sum(self, part: Tensor) -> Tensor:
        return part

    def join(self, part: Tensor) -> Tensor:
        return part

    def agree(self, decide: Callable[[], int]) -> int:
        return decide()


class First:
    """The first rank, with a connection to each of the others, in their order."""

    rank = 0

    def __init__(self, others: Sequence[Connection], end_of: Callable[[int], str]) -> None:
        """`end_of`: what is known of the end of a rank."""
        self._others, self._end_of = others, end_of
        self.size = 1 + len(others)

    def sum(self, part: Tensor) -> Tensor:
        part = part.contiguous()
        total, other = part.float(), torch.empty_like(part)
        for rank in range(1, self.size):
            self._hear(rank, lambda connection: connection.recv_bytes_into(_memory(other)))
            total += other
        part.copy_(total)
        self._tell(lambda connection: connection.send_bytes(_memory(part)))
        return part

    def join(self, part: Tensor) -> Tensor:
        if not len(part):
            return part
        parts = [part]
        for rank in range(1, self.size):
            values = bytearray(self._hear(rank, Connection.recv_bytes))
            parts.append(torch.frombuffer(values, dtype=part.dtype).view(len(part), -1))
        return torch.cat(parts, 1)

    def agree(self, decide: Callable[[], int]) -> int:
        for rank in range(1, self.size):
            if (problem := self.hear(rank)) is not None:
                raise EngineStartError(f"rank {rank} of {self.size}: {problem}")
        decided = decide()
        self.tell(decided)
        return decided

    def hear(self, rank: int) -> Any:
        """The next message of a rank, whenever it comes; raises RankLost."""
        return self._hear(rank, Connection.recv, is_step=False)

    def tell(self, message: Any) -> None:
        """Send this to all others; raises RankLost."""
        encoded = pickle.dumps(message)
        self._tell(lambda connection: connection.send_bytes(encoded))

    def _hear(self, rank: int, take: Callable[[Connection], T], *, is_step: bool = True) -> T:
        connection = self._others[rank - 1]
        try:
            while is_step and not connection.poll(_SLOW_S):
                log.warning(
                    "Rank %d of %d has kept the others waiting for %.0f s: it is stopped, or"
                    " another program uses its cores",
                    *(rank, self.size, _SLOW_S),
                )
            return take(connection)
        except (OSError, EOFError) as error:
            raise self._lost(rank) from error

    def _tell(self, give: Callable[[Connection], None]) -> None:
        for rank, connection in enumerate(self._others, 1):
            try:
                give(connection)
            except OSError as error:
                raise self._lost(rank) from error

    def _lost(self, rank: int) -> RankLost:
        return RankLost(f"rank {rank} of {self.size} {self._end_of(rank)}")


class Other:
    """Any other rank; an error of its connection ends it."""

    def __init__(self, rank: int, size: int, first: Connection) -> None:
        self.rank, self.size = rank, size
        self._first = first

    def sum(self, part: Tensor) -> Tensor:
        part = part.contiguous()
        self._first.send_bytes(_memory(part))
        self._first.recv_bytes_into(_memory(part))
        return part

    def join(self, part: Tensor) -> Tensor:
        if len(part):
            self._first.send_bytes(_memory(part.contiguous()))
        return part

    def agree(self, decide: Callable[[], int]) -> int:
        self._first.send(None)
        decided: int = self._first.recv()
        return decided


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, in place."""
    return tensor.view(torch.uint8).numpy().data.cast("B")
