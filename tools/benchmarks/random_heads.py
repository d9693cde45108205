"""Heads that nobody trained, for benchmarks and tests: one never right, one that always is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.native.config import ModelConfig
from engines.native.eagle.checkpoint import EagleWeights
from engines.native.eagle.config import EagleConfig, Llama3Rope
from engines.native.eagle.head import EagleHead


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What a head's time depends on; as nvidia/gpt-oss-120b-Eagle3-v3, with fewer draft tokens."""

    draft_vocab_size: int = 32_768
    intermediate_size: int = 16_384
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    head_dim: int = 64

    def config(self, model: ModelConfig) -> EagleConfig:
        """Of a head for this model that looks at its first, middle and last layer."""
        num = model.num_hidden_layers
        return EagleConfig(
            hidden_size=model.hidden_size,
            target_hidden_size=model.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            draft_vocab_size=self.draft_vocab_size,
            vocab_size=model.vocab_size,
            rms_norm_eps=model.rms_norm_eps,
            rope=Llama3Rope(10_000.0),
            layers=tuple(sorted({0, num // 2, num - 1})),
        )


def random_head(
    model: ModelConfig, shape: HeadShape, embedding: Tensor, num_positions: int
) -> EagleHead:
    """A head of random weights on the embedding's device, in bfloat16."""
    config = shape.config(model)
    hidden, device = config.hidden_size, embedding.device
    generator = torch.Generator(device).manual_seed(7)

    def normal(*size: int, scale: float = 0.02, mean: float = 0.0) -> Tensor:
        values = torch.empty(size, dtype=torch.bfloat16, device=device)
        return values.normal_(mean, scale, generator=generator)

    def gain() -> Tensor:
        return normal(hidden, scale=0.1, mean=1.0)

    weights = EagleWeights(
        embedding=embedding,
        fuse=normal(hidden, len(config.layers) * hidden, scale=0.01),
        embedding_norm=gain(),
        hidden_norm=gain(),
        qkv=normal(config.q_size + 2 * config.kv_size, 2 * hidden),
        out=normal(hidden, config.q_size),
        mlp_norm=gain(),
        gate_up=normal(2 * config.intermediate_size, hidden),
        down=normal(hidden, config.intermediate_size),
        norm=gain(),
        head=normal(config.draft_vocab_size, hidden),
        target_ids=torch.arange(config.draft_vocab_size, device=device),
    )
    return EagleHead(config, weights, num_positions)


def knowing_head(
    model: ModelConfig, shape: HeadShape, embedding: Tensor, following: Tensor, num_positions: int
) -> EagleHead:
    """A head for a text whose next token follows from its last: `following` (tokens) of the first
    tokens, whose embeddings are about as long as each other.

    It finds the last token's embedding e among those of the text, by a projection P on all K/V
    heads, and takes away what is left of the token before:

        v = P (e - hidden_norm(z before)), scaled; z = P^T P e; guess = the best following row
    """
    config, device = shape.config(model), embedding.device
    hidden, kv, group = config.hidden_size, config.kv_size, config.q_size // config.kv_size
    directions = torch.randn(hidden, kv, generator=torch.Generator().manual_seed(7))
    projection = torch.linalg.qr(directions).Q.T.to(device)  # (kv, hidden), its rows orthonormal
    none = torch.zeros_like(projection)
    scale = (kv / hidden) ** 0.5  # of what hidden_norm sees: z is a projection
    keys = torch.cat((1.5 * projection, none), 1)
    heads = keys.unflatten(0, (-1, config.head_dim)).repeat_interleave(group, 0).flatten(0, 1)
    values = torch.cat((projection, -scale * projection), 1)
    spread = projection.unflatten(0, (-1, config.head_dim)).repeat_interleave(group, 0) / group
    known = embedding[: len(following)].float()
    known = known * (known.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    rows = torch.zeros(config.draft_vocab_size, hidden, device=device)
    rows[following] = known @ projection.T @ projection

    def plain(tensor: Tensor) -> Tensor:
        return tensor.bfloat16().contiguous()

    def zeros(*size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.bfloat16, device=device)

    ones = plain(torch.ones(hidden, device=device))
    weights = EagleWeights(
        embedding=embedding,
        fuse=zeros(hidden, len(config.layers) * hidden),
        embedding_norm=ones,
        hidden_norm=ones,
        qkv=plain(torch.cat((heads, keys, values))),
        out=plain(spread.flatten(0, 1).T),
        mlp_norm=ones,
        gate_up=zeros(2 * config.intermediate_size, hidden),
        down=zeros(hidden, config.intermediate_size),
        norm=ones,
        head=plain(rows),
        target_ids=torch.arange(config.draft_vocab_size, device=device),
    )
    return EagleHead(config, weights, num_positions)
