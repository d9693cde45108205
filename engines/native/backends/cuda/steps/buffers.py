"""What a step reads and writes on the device; addresses stay, so graphs can be replayed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.native.backends.cuda.steps.shape import Shape

_MAX_PARTS = 8  # of a product's inputs
_MAX_SPLITS = 2048  # of all rows' contexts: 16 for up to 128 rows, 2 for 1,024


@dataclass(frozen=True, slots=True)
class SlotTensors:
    """The device's state of all running sequences between steps, by slot."""

    token_ids: Tensor  # int32: the last token, which a step that samples replaces
    temperatures: Tensor  # float32; 0: greedy
    seeds: Tensor  # int64
    full_tables: Tensor  # (slots, blocks) int32
    window_tables: Tensor
    adapters: Tensor | None  # int32: places, -1 for none; None where there are none

    @classmethod
    def allocate(
        cls, num: int, num_blocks: int, device: torch.device, *, has_adapters: bool = False
    ) -> SlotTensors:
        """The state of a number of slots; `num_blocks`: of the longest sequence. Tables are
        zero."""

        def make(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            token_ids=make(num),
            temperatures=make(num, dtype=torch.float32),
            seeds=make(num, dtype=torch.int64),
            full_tables=make(num, num_blocks),
            window_tables=make(num, num_blocks),
            adapters=make(num) - 1 if has_adapters else None,
        )


class Rows:
    """The rows of a step: parts of one tensor, which the host sets with one copy."""

    def __init__(self, num: int, device: torch.device) -> None:
        self.packed = torch.zeros(1 + 3 * num, dtype=torch.int32, device=device)
        self.copies = [self.packed]  # of each stage, set together
        self.num_rows = self.packed[:1]  # rows from here on are padding
        self.slots, self.positions, self.generated = self.packed[1:].view(3, num)
        self.sampled = torch.zeros(num, dtype=torch.int32, device=device)


class Scratch:
    """Intermediate results of a step of up to `rows` rows; batch buckets share them."""

    def __init__(self, shape: Shape, rows: int, device: torch.device) -> None:
        config, pairs = shape.config, rows * shape.top_k

        def make(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.x = make(rows, shape.hidden)  # the residual stream
        self.normed = make(rows, shape.hidden, dtype=torch.bfloat16)
        self.qkv = make(rows, shape.qkv_size)
        self.attended = make(rows, config.q_size, dtype=torch.bfloat16)
        self.experts_in = make(rows, shape.hidden_stride, dtype=torch.float16)
        self.experts_in_wide = make(rows, shape.hidden_stride, dtype=torch.bfloat16)
        self.placed = torch.zeros_like(self.experts_in_wide)  # kernels/fragments.py's place
        self.inner = make(pairs, shape.inner_stride, dtype=torch.float16)
        self.inner_wide = make(pairs, shape.inner_stride, dtype=torch.bfloat16)
        self.outputs = make(pairs, shape.hidden)
        self.part = make(rows, shape.hidden)  # of a rank, of what all ranks add up
        widest = max(shape.qkv_size, shape.hidden)
        self.parts = make(_MAX_PARTS * rows * widest)
        self.router_logits = make(rows, shape.num_experts)
        self.weights = make(pairs)
        self.experts = make(pairs, dtype=torch.int32)
        self.active = make(shape.num_experts, dtype=torch.int32)
        self.counts = make(shape.num_experts, dtype=torch.int32)
        self.pairs = make(shape.num_experts, rows, dtype=torch.int32)
        self.tiles = make(shape.num_experts + pairs, dtype=torch.int32)
        splits = min(rows * 16, _MAX_SPLITS) * config.num_key_value_heads
        self.part_out = make(splits * 16, config.head_dim)
        self.part_max = make(splits * 16)
        self.part_sum = make(splits * 16)
        # Counters of arrived programs; each kernel leaves them at zero.
        self.tile_arrivals = make(65536, dtype=torch.int32)
        self.row_arrivals = make(rows * config.num_key_value_heads, dtype=torch.int32)


def lists_of_pairs(pairs: Tensor, tokens: int) -> Tensor:
    """Of lists (experts, most tokens) those of a step of `tokens`, side by side in the same memory.

    So kernels are compiled for the size of a step alone, and profiles share them.
    """
    num_experts = len(pairs)
    return pairs.flatten()[: num_experts * tokens].view(num_experts, tokens)
