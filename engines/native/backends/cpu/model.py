"""gpt-oss: alternating window and full attention with sinks, and mixture-of-experts layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.native.backends.cpu.adapters import AdaptedRows
from engines.native.backends.cpu.attention import Attention, KVCache, Layout
from engines.native.backends.cpu.exchange import RankExchange
from engines.native.backends.cpu.layers import (
    Experts,
    ExpertTensors,
    Linear,
    OutputHead,
    RmsNorm,
    RotaryEmbedding,
    Router,
    experts_type,
    interleave_halves,
    num_step_weights,
    rotate,
)
from engines.native.config import LayerType, ModelConfig
from engines.native.host.slots import Logits
from engines.native.tensor_parallel.weights import PartTensors
from engines.native.weights import EMBEDDING, NORM, output_head

# In multiply-adds: below about half a millisecond on one core a second thread gains nothing.
_MIN_PARALLEL_WORK = 25_000_000
_MIN_ROWS = 10  # with fewer, reading the weights takes the time, not multiplying
_WORK_OF_CACHED_VALUE = 16  # gathering K/V and reading it takes the time, not multiplying


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads a checkpoint's tensors in the dtype and on the device of the engine."""

    checkpoint: PartTensors
    dtype: torch.dtype
    device: torch.device
    prefix: str = ""

    def __call__(self, name: str) -> Tensor:
        return self.checkpoint.tensor(self.prefix + name, self.dtype).to(self.device)

    def below(self, prefix: str) -> Loader:
        """A loader of the tensors whose names begin with this prefix too."""
        return Loader(self.checkpoint, self.dtype, self.device, self.prefix + prefix)


class Layer:
    """One transformer block."""

    def __init__(
        self, config: ModelConfig, index: int, load: Loader, exchange: RankExchange
    ) -> None:
        """`config`: of what this rank has of the layer."""
        self._exchange, self._index = exchange, index
        self.type: LayerType = config.layer_types[index]
        self._cache_layer = config.layer_types[:index].count(self.type)
        self._q_size, self._head_dim = config.q_size, config.head_dim
        self._num_heads = config.num_attention_heads
        self._num_rotated_heads = config.num_attention_heads + config.num_key_value_heads
        self._attention_norm = RmsNorm(load("input_layernorm.weight"), config.rms_norm_eps)
        self._qkv, self._out = _attention_linears(config, load.below("self_attn."))
        self._attention = Attention(
            load("self_attn.sinks"), config.num_key_value_heads, config.head_dim
        )
        self._moe_norm = RmsNorm(load("post_attention_layernorm.weight"), config.rms_norm_eps)
        self._router = Router(
            load("mlp.router.weight"),
            load("mlp.router.bias"),
            config.num_experts_per_tok,
        )
        self._experts = _experts(config, load.below("mlp.experts."))

    def __call__(
        self,
        x: Tensor,
        rotations: Tensor,
        layout: Layout,
        cache: KVCache,
        adapted: Sequence[AdaptedRows],
    ) -> Tensor:
        """x (tokens, hidden) -> the same; writes the tokens' K/V to the cache."""
        here = layout.full if self.type == "full_attention" else layout.sliding
        normed = self._attention_norm(x)
        qkv = self._qkv(normed)  # (tokens, q_size + 2 * kv_size)
        for rows in adapted:
            rows.add_qkv(self._index, normed, qkv)
        heads = qkv.unflatten(-1, (-1, self._head_dim))
        rotate(heads[:, : self._num_rotated_heads], rotations)
        cache.write(self._cache_layer, here.slots, qkv[:, self._q_size :])
        attended = self._attention(
            heads[:, : self._num_heads], cache.blocks[self._cache_layer], here.groups
        )
        out = self._out(attended)
        for rows in adapted:
            rows.add_out(self._index, attended, out)
        x = x + self._exchange.sum(out)
        h = self._moe_norm(x)
        weights, ids = self._router(h)
        out = self._experts(h, weights, ids)
        for rows in adapted:
            rows.redo_experts(self._index, self._experts, h, weights, ids, out)
        return x + self._exchange.sum(out)


class GptOss:
    """The whole model, from token ids to logits."""

    def __init__(
        self, config: ModelConfig, load: Loader, threads: ThreadChooser, exchange: RankExchange
    ) -> None:
        """`config`: of what this rank has of the model."""
        self._dtype, self._threads = load.dtype, threads
        self._num_layer_weights = num_step_weights(config)
        self._rotary_embedding = RotaryEmbedding(config.rope, config.head_dim, load.device)
        # A mapped file: only the rows that are looked up are ever read.
        self.embedding = load.checkpoint.stored(EMBEDDING).to(load.device)
        self._layers = [
            Layer(config, index, load.below(f"model.layers.{index}."), exchange)
            for index in range(config.num_hidden_layers)
        ]
        self._norm = RmsNorm(load(NORM), config.rms_norm_eps)
        head = load.checkpoint.stored(output_head(config)).to(load.device)
        self._head = OutputHead(head, load.dtype, exchange)

    @torch.inference_mode()
    def states(self, layout: Layout, cache: KVCache, adapted: Sequence[AdaptedRows] = ()) -> Tensor:
        """Compute the step's tokens, writing their K/V; the residual stream (tokens, hidden)."""
        num_cached = layout.num_gathered_blocks * cache.blocks.shape[-1]
        self._threads.prepare(len(layout.input_ids), self._num_layer_weights, num_cached)
        x = F.embedding(layout.input_ids, self.embedding).to(self._dtype)
        rotations = self._rotary_embedding(layout.positions)
        for layer in self._layers:
            x = layer(x, rotations, layout, cache, adapted)
        return x

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Logits:
        """Rows (rows, hidden) of the residual stream after the last layer -> their logits."""
        self._threads.prepare(len(x), self._head.num_weights)
        return self._head(self._norm(x))


def _attention_linears(config: ModelConfig, load: Loader) -> tuple[Linear, Linear]:
    """The q, k and v projections as one, rotated pairs side by side; and the output's."""

    def qkv(kind: str) -> Tensor:
        q, k = (
            interleave_halves(load(f"{name}.{kind}"), config.head_dim)
            for name in ("q_proj", "k_proj")
        )
        return torch.cat((q, k, load(f"v_proj.{kind}")))

    has_bias = config.attention_bias
    return (
        Linear(qkv("weight"), qkv("bias") if has_bias else None),
        Linear(load("o_proj.weight"), load("o_proj.bias") if has_bias else None),
    )


def _experts(config: ModelConfig, load: Loader) -> Experts:
    whole = load.checkpoint
    tensors = ExpertTensors(
        whole.shard.experts.start,
        whole.model.num_local_experts,
        load("gate_up_proj"),
        load("gate_up_proj_bias"),
        load("down_proj"),
        load("down_proj_bias"),
    )
    return experts_type(config)(config, tensors)


class ThreadChooser:
    """Sets torch's number of threads before each stage of a step."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads

    def prepare(self, num_rows: int, num_weights: int, num_cached_values: int = 0) -> None:
        """Announce products of num_rows rows with a matrix of num_weights values.

        `num_cached_values` of K/V are attended to in between. The choice stays in force for
        what follows in this thread, such as sampling.
        """
        work = max(num_rows, _MIN_ROWS) * num_weights + num_cached_values * _WORK_OF_CACHED_VALUE
        torch.set_num_threads(self._max_threads if work >= _MIN_PARALLEL_WORK else 1)
