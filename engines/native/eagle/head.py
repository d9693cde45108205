"""An EAGLE3 head: one layer that proposes tokens from what the target computed (arXiv 2503.01840).

What the head computes at a position p, from 1 on, in the published notation:

    g(p-1) = fc [h_a(p-1) ; h_b(p-1) ; h_c(p-1)]       the target's states one position before
    x(p)   = [input_layernorm(embed(t_p)) ; hidden_norm(g(p-1))]
    q k v  = x(p) through the projections, q and k rotated
    y(p)   = g(p-1) + o_proj attention(q, K/V of positions 1 .. p)
    z(p)   = y(p) + mlp(post_attention_layernorm(y(p)))
    guess of t_(p+1) = the best of lm_head norm(z(p)), by d2t a token of the target

A draft is followed by the next one with z(p) in the place of g(p), as the target has not computed
that yet. K/V are at the position of their *token*, where published code counts from the state's:
rotations depend on differences alone, so both are the same, and here a block's K/V depend on
nothing but the tokens up to its end, as the prefix cache wants them to. Position 0 has no K/V.

K/V of known tokens need the states, the embedding and two projections; attention and the rest are
computed for drafts alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.native.eagle.checkpoint import EagleWeights
from engines.native.eagle.config import EagleConfig
from engines.native.eagle.rope import rotated, rotation_tables

Attend = Callable[[Tensor], Tensor]
"""q, k, v of a row each, side by side (rows, q + 2 * kv), before rotation -> (rows, q): writes the
rows' K/V, and attends to all of each row's sequence from position 1 to the row's own."""


class EagleHead:
    """A head's computations, for any device; what is kept between steps is the caller's."""

    def __init__(self, config: EagleConfig, weights: EagleWeights, num_positions: int) -> None:
        self.config, self.weights = config, weights
        tables = rotation_tables(config.rope, config.head_dim, num_positions)
        self.cosines, self.sines = (t.to(weights.fuse.device) for t in tables)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, K/V and activations."""
        return self.weights.fuse.dtype

    @property
    def num_values(self) -> int:
        """Weight values read for one draft token of any number of sequences."""
        w = self.weights
        return sum(t.numel() for t in (w.qkv, w.out, w.gate_up, w.down, w.head))

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a block of `num` tokens: K/V, and g of its last position."""
        return (
            block_size * 2 * self.config.kv_size + self.config.hidden_size
        ) * self.dtype.itemsize

    def fuse(self, states: Tensor) -> Tensor:
        """states (rows, layers * target_hidden) -> g (rows, hidden)."""
        return F.linear(states, self.weights.fuse)

    def keys_values(self, token_ids: Tensor, before: Tensor, positions: Tensor) -> Tensor:
        """K/V of known tokens (rows): (rows, 2 * kv), keys rotated.

        before: g of the position before each token's (rows, hidden).
        """
        config = self.config
        kv = F.linear(self._inputs(token_ids, before), self.weights.qkv[config.q_size :])
        keys = kv[:, : config.kv_size].unflatten(1, (-1, config.head_dim))
        kv[:, : config.kv_size] = self.rotated(keys, positions).flatten(1)
        return kv

    def rotated(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys (rows, heads, head_dim), rotated to their positions (rows)."""
        return rotated(heads, self.cosines[positions], self.sines[positions])

    def guess(self, token_ids: Tensor, before: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """The token after each of `token_ids` (rows), and z, which is taken for g from there on."""
        w = self.weights
        qkv = F.linear(self._inputs(token_ids, before), w.qkv)
        y = before + F.linear(attend(qkv), w.out)
        gate, up = F.linear(self._norm(y, w.mlp_norm), w.gate_up).chunk(2, -1)
        z = y + F.linear(F.silu(gate) * up, w.down)
        best = F.linear(self._norm(z, w.norm), w.head).argmax(-1)
        return (best if w.target_ids is None else w.target_ids[best]), z

    def _inputs(self, token_ids: Tensor, before: Tensor) -> Tensor:
        w = self.weights
        embedded = F.embedding(token_ids, w.embedding).to(before.dtype)
        parts = (self._norm(embedded, w.embedding_norm), self._norm(before, w.hidden_norm))
        return torch.cat(parts, -1)

    def _norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return F.rms_norm(x, gain.shape, gain, self.config.rms_norm_eps)
