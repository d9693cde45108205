"""What each of several ranks has of every layer: heads, experts or columns of them, and the head's
rows.

Attention is split by K/V heads, with the query heads that share them. Experts are split by column
(each rank has some of every expert's inner values, in whole MXFP4 blocks) or by expert.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from engines.errors import EngineStartError
from engines.native.config import ModelConfig, NativeConfig
from engines.native.mxfp4 import BLOCK_SIZE

_VOCABULARY_UNIT: Final = 16  # rows of the head that stay together


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of one rank; whole where there is one."""

    rank: int
    size: int  # ranks in all
    kv_heads: range
    experts: range
    inner: range  # values between an expert's two matrices

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1


def shares(num: int, size: int) -> list[range]:
    """Neighbouring places for each rank, in order; where they do not divide evenly, the first ranks
    have one more."""
    each, left = divmod(num, size)
    starts = [rank * each + min(rank, left) for rank in range(size + 1)]
    return [range(*pair) for pair in pairwise(starts)]


def shard_of(model: ModelConfig, config: NativeConfig, rank: int) -> Shard:
    """The part of a rank; raises EngineStartError where the model cannot be split so."""
    size = config.tensor_parallel
    if model.num_key_value_heads % size:
        raise EngineStartError(
            f"tensor_parallel is {size}, and the model's {model.num_key_value_heads} K/V heads"
            " cannot be shared out evenly; use a divisor of it"
        )
    by_expert = config.expert_parallel > 1
    num = model.num_local_experts if by_expert else -(-model.intermediate_size // BLOCK_SIZE)
    if num < size:
        remedy = "a smaller one" if by_expert else f"a smaller one, or expert_parallel {size}"
        what = "experts" if by_expert else f"blocks of {BLOCK_SIZE} in an expert's columns"
        raise EngineStartError(
            f"tensor_parallel is {size}, and there are {num} {what}; use {remedy}"
        )
    own = shares(num, size)[rank]
    return Shard(
        rank,
        size,
        kv_heads=shares(model.num_key_value_heads, size)[rank],
        experts=own if by_expert else range(model.num_local_experts),
        inner=range(model.intermediate_size) if by_expert else _values(own, model),
    )


def part_of(model: ModelConfig, shard: Shard) -> ModelConfig:
    """The shape of what a rank holds, its vocabulary left whole."""
    queries_per_kv = model.num_attention_heads // model.num_key_value_heads
    return replace(
        model,
        num_key_value_heads=len(shard.kv_heads),
        num_attention_heads=len(shard.kv_heads) * queries_per_kv,
        num_local_experts=len(shard.experts),
        intermediate_size=len(shard.inner),
    )


def vocabulary_of(model: ModelConfig, shard: Shard) -> range:
    """The rows of the head that a rank with a GPU of its own has."""
    units = shares(-(-model.vocab_size // _VOCABULARY_UNIT), shard.size)[shard.rank]
    end = min(units.stop * _VOCABULARY_UNIT, model.vocab_size)
    return range(units.start * _VOCABULARY_UNIT, end)


def embedded_by(model: ModelConfig, shard: Shard) -> int:
    """The rows of the embedding that a rank with a GPU of its own has: the last one has them."""
    return model.vocab_size if shard.is_last else 0


def _values(blocks: range, model: ModelConfig) -> range:
    end = min(blocks.stop * BLOCK_SIZE, model.intermediate_size)
    return range(blocks.start * BLOCK_SIZE, end)
