"""What a step reads and writes on the device; addresses stay, so graphs can be replayed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.native.backends.cuda.shape import Shape

_MAX_PARTS = 8  # of a product's inputs


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The rows of a step, one a sequence, as the host sets them and the step leaves them."""

    num_rows: Tensor  # (1) int32: rows from here on are padding
    token_ids: Tensor  # int32: the next input; the step writes what it sampled
    positions: Tensor  # int32: of that input; the step counts on
    generated: Tensor  # int32: tokens of the answer so far; the step counts on
    temperatures: Tensor  # float32; 0: greedy
    seeds: Tensor  # int64
    full_tables: Tensor  # (rows, blocks) int32
    window_tables: Tensor

    @classmethod
    def allocate(cls, rows: int, num_blocks: int, device: torch.device) -> StepInputs:
        """`num_blocks`: of the longest sequence."""

        def ints(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            num_rows=ints(1),
            token_ids=ints(rows),
            positions=ints(rows),
            generated=ints(rows),
            temperatures=ints(rows, dtype=torch.float32),
            seeds=ints(rows, dtype=torch.int64),
            full_tables=ints(rows, num_blocks),
            window_tables=ints(rows, num_blocks),
        )


class Scratch:
    """Intermediate results of a step of up to `rows` rows; buckets share them."""

    def __init__(
        self, shape: Shape, rows: int, device: torch.device, num_chunks: int = 128
    ) -> None:
        """`num_chunks`: of the vocabulary, which are drawn from side by side."""
        self.num_chunks = num_chunks
        config, pairs = shape.config, rows * shape.top_k

        def make(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.x = make(rows, shape.hidden)  # the residual stream
        self.normed = make(rows, shape.hidden, dtype=torch.bfloat16)
        self.qkv = make(rows, shape.qkv_size)
        self.attended = make(rows, config.q_size, dtype=torch.bfloat16)
        self.experts_in = make(rows, shape.hidden_stride, dtype=torch.float16)
        self.experts_in_wide = make(rows, shape.hidden_stride, dtype=torch.bfloat16)
        self.inner = make(pairs, shape.inner_stride, dtype=torch.float16)
        self.inner_wide = make(pairs, shape.inner_stride, dtype=torch.bfloat16)
        self.outputs = make(pairs, shape.hidden)
        self.logits = make(rows, config.vocab_size)
        widest = max(shape.qkv_size, shape.hidden)
        self.parts = make(_MAX_PARTS * rows * widest)
        self.router_logits = make(rows, shape.num_experts)
        self.weights = make(pairs)
        self.experts = make(pairs, dtype=torch.int32)
        self.active = make(shape.num_experts, dtype=torch.int32)
        self.counts = make(shape.num_experts, dtype=torch.int32)
        self.pairs = make(shape.num_experts, rows, dtype=torch.int32)
        self.tiles = make(shape.num_experts + pairs, dtype=torch.int32)
        splits = rows * config.num_key_value_heads * 16
        self.part_out = make(splits * 16, config.head_dim)
        self.part_max = make(splits * 16)
        self.part_sum = make(splits * 16)
        self.part_best = make(rows, num_chunks)
        self.part_token = make(rows, num_chunks, dtype=torch.int32)
        # Counters of arrived programs; each kernel leaves them at zero.
        self.tile_arrivals = make(65536, dtype=torch.int32)
        self.row_arrivals = make(rows * config.num_key_value_heads, dtype=torch.int32)
