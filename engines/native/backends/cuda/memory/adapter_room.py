"""The room that LoRA adapters take on a device, beside the weights and before the K/V."""

from __future__ import annotations

from typing import Final, NamedTuple

from engines.native.backends.cuda.kernels.launch import next_power_of_2
from engines.native.config import ModelConfig, NativeConfig

MANY: Final = 512  # rows from which on tiles are large and a product is not shared out
SPLITS: Final = 8  # of a product's inputs, for fewer rows
_GRAPHS: Final = 400 << 20  # bytes of a second graph for each size of step


class AdapterRoom(NamedTuple):
    """How many adapters a device has room for, each padded to one rank."""

    places: int
    rank: int

    @classmethod
    def of(cls, config: NativeConfig) -> AdapterRoom | None:
        return cls.fitting(config.max_adapters, config.max_adapter_rank)

    @classmethod
    def fitting(cls, places: int, rank: int) -> AdapterRoom | None:
        return cls(places, max(next_power_of_2(rank), 16)) if places else None

    def part_sums(self, rows: int, tokens: int) -> int:
        """Numbers between a product's two matrices, in steps of up to that many."""
        shared_out = min(max(rows, tokens), MANY - 1) * SPLITS
        return 3 * self.rank * max(shared_out, rows, tokens)

    def num_bytes(self, model: ModelConfig) -> int:
        """Bytes of one adapter."""
        downs = 3 * model.hidden_size + model.q_size
        ups = model.q_size + 2 * model.kv_size + model.hidden_size
        return 2 * model.num_hidden_layers * self.rank * (downs + ups)


def adapters_bytes(model: ModelConfig, config: NativeConfig) -> int:
    """Bytes of a device's adapters, of one on its way, and of what steps compute with them."""
    if (room := AdapterRoom.of(config)) is None:
        return 0
    rows, tokens = config.max_num_seqs, config.max_num_batched_tokens
    scratch = 4 * room.part_sums(rows, tokens) + 4 * 65 * max(rows, tokens)
    return _GRAPHS + scratch + (room.places + 1) * room.num_bytes(model)
