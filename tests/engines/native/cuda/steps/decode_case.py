"""A random model with sequences of random lengths in a permuted paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.native.backends.cpu.attention import read, stored
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.choices.variants import Choices
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.fields import SlotFields
from engines.native.backends.cuda.sampling.sampler import Sampler
from engines.native.backends.cuda.steps.buffers import Rows, Scratch, SlotTensors
from engines.native.backends.cuda.steps.decode import DecodeStep
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.config import ModelConfig
from engines.native.kv_pool import FP8
from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE
from tests.engines.native.cuda.reference import Outcome, forward_reference
from tools.benchmarks.random_model import random_weights

Past = list[tuple[Tensor, Tensor]]


class DecodeCase:
    """Sequences whose past is random K/V; the next step is checked."""

    def __init__(
        self,
        config: ModelConfig,
        lengths: list[int],
        block_size: int,
        seed: int | None = None,
        *,
        is_fp8: bool = False,
    ) -> None:
        torch.manual_seed(len(lengths) if seed is None else seed)
        self.shape, self.lengths, self.block_size = Shape(config), lengths, block_size
        self.weights = random_weights(config, max(lengths) + 8, DEVICE)
        per_sequence = max(lengths) // block_size + 2
        num_blocks = len(lengths) * per_sequence + 1
        values = block_size * 2 * config.kv_size
        kinds = config.layer_types
        group = max(kinds.count("full_attention"), kinds.count("sliding_attention"))
        # Full and window layers share the pool, so that either finds the other's blocks beside its.
        kv = torch.randn((group, 2 * num_blocks, values), dtype=torch.bfloat16, device=DEVICE)
        self.cache = stored(kv, FP8) if is_fp8 else kv
        self.slots = SlotTensors.allocate(len(lengths), per_sequence, DEVICE)
        self.inputs = Rows(len(lengths), DEVICE)
        self.inputs.slots.copy_(torch.randperm(len(lengths)))
        order = torch.randperm(2 * num_blocks - 2)[: 2 * len(lengths) * per_sequence] + 1
        full, window = order.view(2, len(lengths), per_sequence).int()
        self.slots.full_tables.copy_(full)
        self.slots.window_tables.copy_(window)
        self.inputs.num_rows.fill_(len(lengths))
        self.inputs.positions.copy_(torch.tensor(lengths))
        self.slots.token_ids.random_(0, config.vocab_size)
        self.scratch = Scratch(self.shape, len(lengths), DEVICE)
        fields = SlotFields(len(self.slots.token_ids), Transfer(DEVICE))
        self.sampler = Sampler(self.inputs, self.slots, fields, config.vocab_size)

    def step(self, choices: Choices | None = None, rows: int | None = None) -> DecodeStep:
        rows = rows or len(self.lengths)
        return DecodeStep(
            self.shape,
            self.weights,
            self.cache,
            self.block_size,
            rows,
            choices or CardChoices.of(DEVICE).decode(rows, self.shape.config),
            self.slots,
            self.inputs,
            self.scratch,
            self.sampler.logits,
        )

    def past(self, row: int) -> Past:
        """K/V of a row as the cache holds them now, up to the row's length."""
        config, past = self.shape.config, []
        slot = int(self.inputs.slots[row])
        for index, kind in enumerate(config.layer_types):
            is_full = kind == "full_attention"
            tables = self.slots.full_tables if is_full else self.slots.window_tables
            layer = self.cache[config.layer_types[:index].count(kind)]
            slots = read(layer[tables[slot].long()], torch.bfloat16)
            slots = slots.view(-1, 2, config.num_key_value_heads, config.head_dim)
            keys, values = slots[: self.lengths[row]].unbind(1)
            past.append((keys.clone(), values.clone()))
        return past

    def expected(self, row: int) -> Outcome:
        slot = int(self.inputs.slots[row])
        return forward_reference(
            self.shape, self.weights, self.slots.token_ids[slot : slot + 1], self.past(row)
        )
