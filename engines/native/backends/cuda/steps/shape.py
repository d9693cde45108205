"""The numbers that the kernels are compiled for, and the buffers' padded widths."""

from __future__ import annotations

from dataclasses import dataclass

from engines.native.backends.cuda.kernels.launch import next_power_of_2
from engines.native.backends.cuda.weights.fragment_order import padded
from engines.native.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's shape, and the widths that follow from it."""

    config: ModelConfig

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.config.hidden_size

    @property
    def inner(self) -> int:
        """Width of an expert between its two products."""
        return self.config.intermediate_size

    @property
    def hidden_block(self) -> int:
        """The least power of two that holds a row of the residual stream."""
        return next_power_of_2(self.hidden)

    @property
    def hidden_stride(self) -> int:
        """Width of rows that the experts multiply: whole supertiles, the rest zero."""
        return padded(self.hidden)

    @property
    def inner_stride(self) -> int:
        """Width of rows between the experts' products: whole supertiles, the rest zero."""
        return padded(self.inner)

    @property
    def qkv_size(self) -> int:
        """Width of the rows of query, key and value together."""
        return self.config.q_size + 2 * self.config.kv_size

    @property
    def group(self) -> int:
        """Query heads that share a K/V head."""
        return self.config.num_attention_heads // self.config.num_key_value_heads

    @property
    def top_k(self) -> int:
        """Experts of a token."""
        return self.config.num_experts_per_tok

    @property
    def num_experts(self) -> int:
        return self.config.num_local_experts

    def window(self, layer: int) -> int:
        """Tokens that a layer sees; 0: all."""
        is_full = self.config.layer_types[layer] == "full_attention"
        return 0 if is_full else self.config.sliding_window
