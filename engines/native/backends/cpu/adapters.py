"""LoRA adapters on the CPU: what is added to the products of those rows that ask for one.

The rows of all others are left as they are, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from engines.native.backends.base import Addend
from engines.native.backends.cpu.layers import (
    ExpertChange,
    ExpertPair,
    Experts,
    interleave_halves,
)
from engines.native.config import ModelConfig
from engines.native.tensor_parallel.shard import Shard, part_of
from engines.native.tensor_parallel.weights import cut

_ROTATED: Final = ("q_proj", "k_proj")
_QKV: Final = (*_ROTATED, "v_proj")


class _Pair(NamedTuple):
    """Changes of matrices with one input: x @ down @ up is added to their outputs."""

    down: Tensor  # (in, ranks)
    up: Tensor  # (ranks, outputs of all)


class _LayerChanges(NamedTuple):
    qkv: _Pair | None
    out: _Pair | None
    experts: ExpertChange | None


CpuAdapter = tuple[_LayerChanges, ...]  # by layer


class CpuAdapters:
    """Those in memory; implements engines.native.backends.base.AdapterTable."""

    has_experts: ClassVar[bool] = True

    def __init__(self, whole: ModelConfig, shard: Shard, dtype: torch.dtype) -> None:
        """Of each adapter it keeps what a rank adds."""
        self._whole, self._shard, self._dtype = whole, shard, dtype
        self._model = part_of(whole, shard)
        self._adapters: dict[str, CpuAdapter] = {}

    def num_bytes(self, rank: int) -> int:
        model = self._model
        qkv = len(_QKV) * (model.hidden_size + model.q_size + 2 * model.kv_size)
        values = model.num_hidden_layers * rank * (qkv + model.q_size + model.hidden_size)
        return values * self._dtype.itemsize

    def prepared(self, changes: Mapping[str, Addend]) -> CpuAdapter:
        own = {
            name: _own(change, cut(name, self._whole, self._shard))
            for name, change in changes.items()
        }
        return tuple(
            self._layer(own, f"model.layers.{index}.")
            for index in range(self._model.num_hidden_layers)
        )

    def put(self, key: str, prepared: CpuAdapter) -> None:
        self._adapters[key] = prepared

    def remove(self, key: str) -> None:
        del self._adapters[key]

    def rows_of(self, adapted: Iterable[tuple[str, Tensor]]) -> list[AdaptedRows]:
        """A step's adapters, each with its rows."""
        return [AdaptedRows(self._adapters[key], rows) for key, rows in adapted]

    def _layer(self, changes: Mapping[str, Addend], prefix: str) -> _LayerChanges:
        model = self._model
        found = {
            name: change
            for name in (*_QKV, "o_proj")
            if (change := changes.get(f"{prefix}self_attn.{name}.weight")) is not None
        }
        of_out = found.pop("o_proj", None)
        out = of_out and self._pair([of_out.down], [torch.from_numpy(of_out.up)])
        experts = self._of_experts(changes, f"{prefix}mlp.experts.")
        if not found:
            return _LayerChanges(None, out, experts)
        ends = [*zip(_QKV, (model.q_size, model.kv_size, model.kv_size), strict=True)]
        ups = []
        for name, change in found.items():  # in columns of zeros: one product serves all three
            up = torch.from_numpy(change.up)
            up = interleave_halves(up, model.head_dim) if name in _ROTATED else up
            columns = (up if each == name else up.new_zeros(num, up.shape[1]) for each, num in ends)
            ups.append(torch.cat([*columns]))
        qkv = self._pair([change.down for change in found.values()], ups)
        return _LayerChanges(qkv, out, experts)

    def _of_experts(self, changes: Mapping[str, Addend], prefix: str) -> ExpertChange | None:
        gate_up, down = (changes.get(f"{prefix}{name}") for name in ("gate_up_proj", "down_proj"))
        if gate_up is None and down is None:
            return None
        if gate_up is not None:  # they take turns in a checkpoint
            up = torch.from_numpy(gate_up.up).unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
            gate_up = gate_up._replace(up=up.numpy())
        return ExpertChange(*(each and self._pair_of_experts(each) for each in (gate_up, down)))

    def _pair_of_experts(self, change: Addend) -> ExpertPair:
        down, up = (torch.from_numpy(each).to(self._dtype) for each in (change.down, change.up))
        return ExpertPair(down.transpose(1, 2).contiguous(), up.transpose(1, 2).contiguous())

    def _pair(self, downs: Iterable[object], ups: list[Tensor]) -> _Pair:
        down = torch.cat([torch.as_tensor(each) for each in downs])
        return _Pair(*(each.to(self._dtype).t().contiguous() for each in (down, torch.cat(ups, 1))))


class AdaptedRows(NamedTuple):
    """An adapter and the rows of a step that are computed with it."""

    adapter: CpuAdapter
    rows: Tensor

    def add_qkv(self, layer: int, x: Tensor, qkv: Tensor) -> None:
        """x (tokens, hidden), qkv (tokens, q_size + 2 * kv_size): changes these rows of qkv."""
        self._add(self.adapter[layer].qkv, x, qkv)

    def add_out(self, layer: int, x: Tensor, out: Tensor) -> None:
        """x (tokens, q_size), out (tokens, hidden): changes these rows of out."""
        self._add(self.adapter[layer].out, x, out)

    def redo_experts(
        self, layer: int, experts: Experts, x: Tensor, weights: Tensor, ids: Tensor, out: Tensor
    ) -> None:
        """Compute these rows of out (tokens, hidden), what the experts make of x, with changes."""
        change = self.adapter[layer].experts
        if change is not None:
            x, weights, ids = (each.index_select(0, self.rows) for each in (x, weights, ids))
            out.index_copy_(0, self.rows, experts(x, weights, ids, change))

    def _add(self, pair: _Pair | None, x: Tensor, y: Tensor) -> None:
        if pair is None:
            return
        if len(self.rows) == len(x):  # all, in their order
            y.addmm_(x @ pair.down, pair.up)
        else:
            y.index_add_(0, self.rows, x.index_select(0, self.rows) @ pair.down @ pair.up)


def _own(change: Addend, places: tuple[slice, ...]) -> Addend:
    """What a rank adds, by its places in the stored tensor."""
    whole = (slice(None),) * (change.up.ndim - len(places))
    if change.up.ndim == 2:
        of_out, of_in = (*places, *whole)
        return Addend(change.up[of_out], change.down[:, of_in])
    experts, of_in, of_out = (*places, *whole)
    return Addend(change.up[experts, of_out], change.down[experts, :, of_in])
