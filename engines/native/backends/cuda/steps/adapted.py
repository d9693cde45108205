"""LoRA adapters in a step: where they lie on the device, and the launches beside the products.

Projections of attention only. A step with adapters is a graph of its own; in it rows without one
are computed as in a step without.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd
from typing import Final, NamedTuple

import torch
from torch import Tensor

from engines.native.backends.cuda.kernels import adapters
from engines.native.backends.cuda.kernels.launch import launch, next_power_of_2
from engines.native.backends.cuda.memory.adapter_room import MANY, SPLITS, AdapterRoom
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.config import ModelConfig

_MOST_COLUMNS: Final = 64  # of a program


class Pair(NamedTuple):
    """The matrices of products with one input, as kernels/adapters.py has them; all bf16.

    down (places, layers, ranks of all, in), up (places, layers, outputs of all, rank).
    """

    down: Tensor
    up: Tensor

    @classmethod
    def zeros(cls, model: ModelConfig, room: AdapterRoom, device: torch.device) -> dict[str, Pair]:
        """Of `places` adapters, those of q, k and v together and those of the output."""
        of_qkv, of_out = (3, model.hidden_size), (1, model.q_size)
        outputs = {"qkv": model.q_size + 2 * model.kv_size, "out": model.hidden_size}
        first = room.places, model.num_hidden_layers

        def make(*size: int) -> Tensor:
            return torch.zeros((*first, *size), dtype=torch.bfloat16, device=device)

        return {
            part: cls(make(num * room.rank, k), make(outputs[part], room.rank))
            for part, (num, k) in {"qkv": of_qkv, "out": of_out}.items()
        }


@dataclass(frozen=True, slots=True)
class StageAdapters:
    """The adapters of a stage's layers, and what its steps compute with them; sizes of step share
    the scratch."""

    room: AdapterRoom
    pairs: dict[str, Pair]
    ranks: Tensor  # (places) int32: the highest of an adapter's matrices
    places: Tensor  # (tiles)
    members: Tensor  # (tiles and their rows)
    parts: Tensor

    @classmethod
    def allocate(
        cls, model: ModelConfig, room: AdapterRoom, rows: int, tokens: int, device: torch.device
    ) -> StageAdapters:
        """For steps of up to that many rows or tokens."""
        most = max(rows, tokens)

        def ints(num: int) -> Tensor:
            return torch.zeros(num, dtype=torch.int32, device=device)

        return cls(
            room,
            Pair.zeros(model, room, device),
            ints(room.places),
            ints(most),
            ints(most * 64),
            torch.zeros(room.part_sums(rows, tokens), device=device),
        )


class Adapted:
    """The launches of a step of one size beside its products."""

    def __init__(
        self, shape: Shape, own: StageAdapters, of_slots: Tensor, rows: int, slots: Tensor,
        num_rows: Tensor, *, is_early: bool = False,
    ) -> None:  # fmt: skip
        """`of_slots` (slots) int32: each one's place; `slots` of the rows, from `num_rows` on
        padding."""
        self._shape, self._own, self._of_slots = shape, own, of_slots
        self._rows, self._slots, self._num_rows = rows, slots, num_rows
        self._early = {"is_dependent": is_early, "is_early": is_early}
        self._bm, self._splits = (64, 1) if rows >= MANY else (16, SPLITS)
        compact = own.room.places + rows // self._bm
        self._is_by_row, self._tiles = rows <= compact, min(rows, compact)
        self._layer = 0

    def begin(self, layer: int) -> None:
        """Begin a layer; before the first one the step's tiles are found."""
        self._layer = layer
        if layer == 0:
            self._group()

    def _group(self) -> None:
        own = self._own
        own.places[: self._tiles].fill_(-1)
        launch(
            adapters.group_kernel, (self._rows,), self._slots, self._of_slots, self._num_rows,
            own.places, own.members, BM=self._bm, BLOCK=128 if self._rows < MANY else 1024,
            IS_BY_ROW=self._is_by_row, num_warps=4,
        )  # fmt: skip
        own.parts[:1].fill_(0)  # no kernel after it begins early: the tiles are there

    def shrink(self, part: str, x: Tensor, gain: Tensor | None = None) -> None:
        """Begin what is added to a product of x; `gain`: of a norm that x, one row, still needs."""
        own, room = self._own, self._own.room
        if part not in own.pairs:
            return
        down = own.pairs[part].down
        k, width = down.shape[3], down.shape[2]
        bn, bk = min(room.rank, 32), min(max(next_power_of_2(k), 16), 128)
        steps = ceil(ceil(k / bk) / self._splits)
        launch(
            adapters.shrink_kernel, (self._tiles, width // bn, self._splits), x,
            x if gain is None else gain, own.places, own.members, own.ranks, down[:, self._layer],
            own.parts, x.stride(0), down.stride(0), K=k, BLOCK=next_power_of_2(k), RANK=room.rank,
            WIDTH=width, BM=self._bm, BN=bn, BK=bk, LINES=next_power_of_2(max(steps * bk // 64, 1)),
            SPLITS=self._splits, STAGES=3, EPS=self._shape.config.rms_norm_eps,
            HAS_NORM=gain is not None, num_warps=4, **self._early,
        )  # fmt: skip

    def expand(self, part: str, y: Tensor) -> None:
        """Add it to the product's rows y."""
        own, room, config = self._own, self._own.room, self._shape.config
        if part not in own.pairs:
            return
        down, up = own.pairs[part]
        n = up.shape[2]
        ends, bn = (n, n), min(next_power_of_2(n), _MOST_COLUMNS)
        if part == "qkv":
            ends = config.q_size, config.q_size + config.kv_size
            bn = gcd(config.q_size, config.kv_size, _MOST_COLUMNS)
        launch(
            adapters.expand_kernel, (self._tiles, -(-n // bn)), own.parts, own.places, own.members,
            own.ranks, up[:, self._layer], y, n, up.stride(0), RANK=room.rank,
            WIDTH=down.shape[2], END1=ends[0], END2=ends[1], BM=self._bm, BN=bn,
            BR=min(room.rank, 64), SPLITS=self._splits, num_warps=4, **self._early,
        )  # fmt: skip
