"""The exchanges of a step between ranks that each have a GPU of their own: kernels/exchange.py.

Their number in a captured graph is even, so that every graph begins with the same of two turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from engines.native.backends.cuda.kernels import exchange
from engines.native.backends.cuda.kernels.launch import launch, next_power_of_2

_MOST_ROWS: Final = 1024  # of an exchange: more are exchanged in pieces
_EMPTY: Final = -(1 << 31)  # the bits of -0.0
_PIECE: Final = 1024  # of a row, where no norm needs the whole of it


def exchange_bytes(hidden: int, rows: int, size: int) -> int:
    """What the exchanges take of each GPU's memory."""
    return 4 * 2 * size * _slot(hidden, rows)


def _slot(hidden: int, rows: int) -> int:
    return -(-hidden * min(rows, _MOST_ROWS) // 16) * 16


class Links:
    """The buffers of all ranks, and each rank's side of the exchanges."""

    def __init__(self, devices: Sequence[torch.device], hidden: int, rows: int) -> None:
        """`rows`: of the largest step, prompts' tokens included."""
        self._devices = devices
        size, slot = len(devices), _slot(hidden, rows)
        if all(device.type == "cuda" for device in devices):
            _reach(devices)
        self._buffers = [
            torch.full((2 * size * slot,), _EMPTY, dtype=torch.int32, device=each)
            for each in devices
        ]
        addresses = torch.tensor([each.data_ptr() for each in self._buffers])
        self._is_open = [torch.zeros(1, dtype=torch.int32, device=each) for each in devices]
        self.sides = [
            LinkSide(
                rank, size, hidden, slot, addresses.to(device), self._is_open[rank], self._buffers
            )
            for rank, device in enumerate(devices)
        ]

    def open(self) -> None:
        """From here on ranks wait for each other: all graphs are captured."""
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        for buffer, is_open in zip(self._buffers, self._is_open, strict=True):
            buffer.fill_(_EMPTY)
            is_open.fill_(1)
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)


def _reach(devices: Sequence[torch.device]) -> None:
    """Have torch let each GPU reach the memory of the others: a copy between two needs that."""
    ones = [torch.ones(1, device=each) for each in devices]
    for one in ones:
        for other in ones:
            if one is not other:
                one.copy_(other)


class LinkSide:
    """One rank's side; all ranks make the same calls in the same order."""

    def __init__(
        self, rank: int, size: int, hidden: int, slot: int, buffers: Tensor, is_open: Tensor,
        kept: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """`buffers`: the addresses of those that are `kept`, as long as a graph may run."""
        self._kept = kept
        self._ranks = {"RANK": rank, "RANKS": size}
        self._slot, self._hidden, self._most = slot, hidden, slot // hidden
        self._turns = size * slot
        self._buffers, self._is_open = buffers, is_open
        self._calls = 0  # of the graph that is being made

    def add_norm(
        self, x: Tensor, outputs: Tensor, weights: Tensor, gain: Tensor | None, normed: Tensor,
        placed: Tensor, *, rows: int, top_k: int, eps: float, is_weighted: bool = False,
        is_fresh: bool = False, is_placed: bool = False, is_dependent: bool = False,
        is_early: bool = False,
    ) -> None:  # fmt: skip
        """Launch the sum over all ranks, and the norm with `gain` if there is one."""
        hidden = self._hidden
        block = _PIECE if gain is None else next_power_of_2(hidden)
        for first in range(0, rows, self._most):
            num = min(self._most, rows - first)
            launch(
                exchange.add_norm_of_ranks_kernel, (num, -(-hidden // block)), x[first:],
                outputs[first * top_k :], weights[first * top_k :],
                normed if gain is None else gain, normed[first:], placed[first:],
                *self._next(), H=hidden, STRIDE=normed.shape[1], BLOCK=block, EPS=eps,
                TOP_K=top_k, IS_WEIGHTED=is_weighted, IS_FRESH=is_fresh,
                IS_NORMED=gain is not None, IS_PLACED=is_placed, **self._ranks,
                num_warps=8 if gain is not None else 4, is_dependent=is_dependent,
                is_early=is_early,
            )  # fmt: skip

    def meet(self) -> None:
        """Launch what ends once all ranks have come to it: their writes before it are there."""
        options: dict[str, Any] = {**self._ranks, "num_warps": 1}
        launch(exchange.meet_kernel, (1,), *self._next(), **options)

    def finish(self) -> None:
        """The last call for a graph."""
        if self._calls % 2:
            self.meet()

    def _next(self) -> tuple[Tensor, int, int, Tensor]:
        turn, self._calls = self._calls % 2, self._calls + 1
        return self._buffers, turn * self._turns, self._slot, self._is_open
