"""LoRA adapters on GPUs: prepared in host memory, copied into places beside the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

import torch

from engines.native.backends.base import Addend
from engines.native.backends.cuda.memory.adapter_room import AdapterRoom
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.steps.adapted import Pair, StageAdapters
from engines.native.config import ModelConfig


class Prepared(NamedTuple):
    """An adapter on the host, by stage and product, as wide as its highest rank."""

    rank: int
    stages: list[dict[str, Pair]]


class CudaAdapters:
    """The places of all stages; implements engines.native.backends.base.AdapterTable."""

    has_experts: ClassVar[bool] = False

    def __init__(
        self, model: ModelConfig, stages: Sequence[StageAdapters], transfer: Transfer
    ) -> None:
        self._model, self._stages, self._transfer = model, stages, transfer
        self._free = [*reversed(range(len(stages[0].ranks)))]
        self._places: dict[str, int] = {}

    def num_bytes(self, rank: int) -> int:
        return AdapterRoom(1, rank).num_bytes(self._model)

    def prepared(self, changes: Mapping[str, Addend]) -> Prepared:
        rank = max((len(change.down) for change in changes.values()), default=1)
        layers = [len(stage.pairs["qkv"].down[0]) for stage in self._stages]
        ends = [*accumulate(layers)]
        return Prepared(
            rank,
            [
                self._prepared(changes, range(end - num, end), rank)
                for num, end in zip(layers, ends, strict=True)
            ],
        )

    def place_of(self, key: str) -> int:
        return self._places[key]

    @torch.inference_mode()
    def put(self, key: str, prepared: Prepared) -> None:
        """Behind all steps that were launched."""
        place = self._free[-1]
        for stage, pairs in zip(self._stages, prepared.stages, strict=True):
            for part, pair in pairs.items():
                self._fill(stage, part, place, pair)
            stage.ranks[place] = prepared.rank
        self._places[key] = self._free.pop()

    def remove(self, key: str) -> None:
        self._free.append(self._places.pop(key))

    def _fill(self, stage: StageAdapters, part: str, place: int, pair: Pair) -> None:
        rank, most = pair.up.shape[2], stage.room.rank
        down, up = (each[place] for each in stage.pairs[part])
        for each in (down, up):
            each.zero_()  # beyond the rank, what was there before
        downs = down.unflatten(1, (-1, most))[:, :, :rank]
        downs.copy_(self._transfer.to_device(pair.down, down.device).view(downs.shape))
        up[..., :rank].copy_(self._transfer.to_device(pair.up, up.device))

    def _prepared(self, changes: Mapping[str, Addend], layers: range, rank: int) -> dict[str, Pair]:
        model = self._model
        qkv = {"q_proj": model.q_size, "k_proj": model.kv_size, "v_proj": model.kv_size}
        found = {
            "qkv": _joined(changes, layers, rank, qkv, model.hidden_size),
            "out": _joined(changes, layers, rank, {"o_proj": model.hidden_size}, model.q_size),
        }
        return {part: Pair(*map(self._transfer.pinned, pair)) for part, pair in found.items()}


def _joined(
    changes: Mapping[str, Addend], layers: range, rank: int, products: Mapping[str, int],
    num_in: int,
) -> Pair:  # fmt: skip
    """Products with one input, `products` with their outputs; zeros where nothing changes."""
    down = torch.zeros((len(layers), len(products), rank, num_in), dtype=torch.bfloat16)
    up = torch.zeros((len(layers), sum(products.values()), rank), dtype=torch.bfloat16)
    for at, layer in enumerate(layers):
        of_outputs = up[at].split([*products.values()])
        for number, name in enumerate(products):
            change = changes.get(f"model.layers.{layer}.self_attn.{name}.weight")
            if change is not None:
                down[at, number, : len(change.down)] = torch.from_numpy(change.down)
                of_outputs[number][:, : len(change.down)] = torch.from_numpy(change.up)
    return Pair(down, up)
