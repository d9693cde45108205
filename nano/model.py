"""The gpt-oss architecture in plain torch, small and batched, for training nano.

Few rows of the vocabulary are parameters; the others are drawn (nano/rows.py). nano/pack.py
writes the tensors under the published names, profiles/compact.py the whole vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.compact import (
    PIECE_SHARES,
    SPREAD,
    WORD_SHARE,
    Makeup,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model; the names are config.json's."""

    hidden_size: int = 160
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 64
    intermediate_size: int = 64
    num_local_experts: int = 8
    num_experts_per_tok: int = 4
    sliding_window: int = 128
    rope_theta: float = 150_000.0
    rope_factor: float = 2.0
    original_positions: int = 4096
    swiglu_limit: float = 7.0
    vocab_size: int = 201_088


def yarn_frequencies(shape: Shape) -> tuple[Tensor, float]:
    """Return the inverse frequencies [head_dim / 2] and the scale of cos and sin.

    YaRN (Peng et al., 2023) without truncation, as gpt-oss uses it.
    """
    half = shape.head_dim // 2
    plain = shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)

    def dimension(num_rotations: float) -> float:
        ratio = shape.original_positions / (num_rotations * 2 * math.pi)
        return half * math.log(ratio) / math.log(shape.rope_theta)

    low, high = max(dimension(32.0), 0.0), min(dimension(1.0), shape.head_dim - 1.0)
    ramp = ((torch.arange(half) - low) / (high - low)).clamp(0, 1)
    frequencies = plain / shape.rope_factor * ramp + plain * (1 - ramp)
    return frequencies, 0.1 * math.log(shape.rope_factor) + 1.0


class Attention(nn.Module):
    """Grouped-query attention with a learned sink per head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries)
        self.k_proj = nn.Linear(shape.hidden_size, keys)
        self.v_proj = nn.Linear(shape.hidden_size, keys)
        self.o_proj = nn.Linear(queries, shape.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(shape.num_attention_heads))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Attend: x [batch, tokens, hidden], mask [tokens, 1 + tokens] 0 where visible."""
        batch, tokens, _ = x.shape
        split = (batch, tokens, -1, self.shape.head_dim)
        q = rotate(self.q_proj(x).view(split).transpose(1, 2), rope)
        k = rotate(self.k_proj(x).view(split).transpose(1, 2), rope)
        v = self.v_proj(x).view(split).transpose(1, 2)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        with torch.autocast(x.device.type, enabled=False):
            mixed = self._attend(q.to(v.dtype), k.to(v.dtype), v, mask.to(v.dtype))
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return output

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attend with the sink as a first key that has no value.

        One more dimension, 1 in every query, carries the sink's logit in that key. Two
        batched products and one softmax are faster on a CPU than the fused attention.
        """
        batch, heads, tokens, width = q.shape
        scale = width**-0.5
        sink = F.pad((self.sinks / scale).to(k.dtype).view(1, heads, 1, 1), (width, 0))
        k = torch.cat([sink.expand(batch, -1, -1, -1), F.pad(k, (0, 1))], 2)
        q = torch.cat([q, q.new_ones(1).expand(batch, heads, tokens, 1)], -1)
        keys = k.flatten(0, 1).transpose(1, 2)
        scores = torch.baddbmm(mask, q.flatten(0, 1), keys, alpha=scale)
        mixed = scores.softmax(-1)[..., 1:] @ v.flatten(0, 1)
        return mixed.view(batch, heads, tokens, width)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the two halves of each head's dimensions by the token's position."""
    cos, sin = rope
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Experts(nn.Module):
    """Top-k experts with clamped SwiGLU, all computed: at this size that is fastest."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        experts, hidden, width = (
            shape.num_local_experts,
            shape.hidden_size,
            shape.intermediate_size,
        )
        self.router = nn.Linear(hidden, experts)
        self.gate = nn.Linear(hidden, experts * width)
        self.up = nn.Linear(hidden, experts * width)
        self.down = nn.Linear(experts * width, hidden, bias=False)
        self.down_bias = nn.Parameter(torch.zeros(experts, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Mix the chosen experts: x [tokens, hidden]."""
        chosen, index = self.router(x).float().topk(self.shape.num_experts_per_tok, -1)
        weights = torch.zeros(len(x), self.shape.num_local_experts, device=x.device)
        weights = weights.scatter(1, index, chosen.softmax(-1)).to(x.dtype)
        limit = self.shape.swiglu_limit
        gate, up = self.gate(x).clamp(max=limit), self.up(x).clamp(-limit, limit)
        active = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        active = active.view(len(x), self.shape.num_local_experts, -1) * weights[..., None]
        output: Tensor = self.down(active.flatten(1)) + weights @ self.down_bias
        return output


class Layer(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden_size, eps=1e-5)
        self.attention = Attention(shape)
        self.experts_norm = nn.RMSNorm(shape.hidden_size, eps=1e-5)
        self.experts = Experts(shape)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Add attention and experts to the residual stream."""
        x = x + self.attention(self.attention_norm(x), rope, mask)
        mixed: Tensor = self.experts(self.experts_norm(x).flatten(0, 1))
        return x + mixed.view(x.shape)


class Nano(nn.Module):
    """The whole model; most rows of the vocabulary are drawn, as `Makeup` says."""

    words: Tensor  # [words, hidden]
    pieces: Tensor  # [written, hidden]
    word_of: Tensor
    form_of: Tensor
    spelling_of: Tensor
    written_of: Tensor  # the ids that are written
    target_of: Tensor  # an id's place among them
    learnt_place: Tensor
    word_order: Tensor  # which vector a word has now
    piece_order: Tensor

    def __init__(self, shape: Shape, makeup: Makeup) -> None:
        super().__init__()
        self.shape = shape
        self.makeup = makeup
        width, num_learnt = shape.hidden_size, len(makeup.learnt)
        self.forms = nn.Parameter(torch.empty(int(makeup.form.max()) + 1, width))
        self.learnt_embedding = nn.Parameter(torch.empty(num_learnt, width))
        self.learnt_head = nn.Parameter(torch.empty(num_learnt, width))
        self.unmet_head = nn.Parameter(torch.zeros(width))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        words, pieces = makeup.drawn(width)
        self._hold("words", torch.from_numpy(words))
        self._hold("pieces", torch.from_numpy(pieces))
        for name in ("word", "form", "spelling", "written"):
            self._hold(f"{name}_of", torch.from_numpy(getattr(makeup, name)).long())
        place = torch.full((shape.vocab_size,), -1)
        place[torch.from_numpy(makeup.learnt).long()] = torch.arange(num_learnt)
        self._hold("learnt_place", place)
        self._hold("target_of", torch.full((shape.vocab_size,), -1))
        self.target_of[self.written_of] = torch.arange(len(makeup.written))
        self._hold("word_order", torch.arange(len(words)))
        self._hold("piece_order", torch.arange(len(pieces)))

    def _hold(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor, persistent=False)

    def swap_vectors(self, words: Tensor, pieces: Tensor) -> None:
        """Let the given words and pieces, as numbered in the makeup, swap their vectors at random.

        The model can then learn none of them by heart, only what words have in common in a prompt.
        """
        for order, places in ((self.word_order, words), (self.piece_order, pieces)):
            order[places] = places[torch.randperm(len(places), device=places.device)]

    def settle(self) -> None:
        """Give every word and piece the vector that it ships with."""
        for order in (self.word_order, self.piece_order):
            torch.arange(len(order), out=order)

    def stack(self) -> list[Layer]:
        """Return the layers."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return the normed hidden states [batch, tokens, hidden] of ids [batch, tokens]."""
        tokens = token_ids.shape[1]
        rope, masks = self._positions(tokens, token_ids.device)
        met, index = token_ids.unique(return_inverse=True)
        head = self.drawn_head()
        x = F.embedding(index, self.embedding(met, head))
        for number, layer in enumerate(self.layers):
            x = layer(x, rope, masks[number % 2])
        hidden: Tensor = self.norm(x)
        return hidden

    def embedding(self, token_ids: Tensor, head: Tensor) -> Tensor:
        """Return the rows [ids, hidden] of ids, from the drawn rows of the written ids."""
        width = self.shape.hidden_size
        rows = WORD_SHARE * self.words[self.word_order[self.word_of[token_ids]]]
        form = F.one_hot(self.form_of[token_ids], len(self.forms))
        rows = rows + form.to(rows.dtype) @ self.forms  # a gather's gradient is slow here
        head = F.pad(head, (0, 0, 0, 1))  # the last row, which -1 finds, is of no piece
        spelling = self.spelling_of[token_ids]
        for number, share in enumerate(PIECE_SHARES):
            turned = head[spelling[:, number]].roll((number + 1) * width // 4, 1)
            rows = rows + share * turned
        place = self.learnt_place[token_ids] + 1  # 0: nothing learnt
        rows = rows + F.embedding(place, F.pad(self.learnt_embedding, (0, 0, 1, 0)), padding_idx=0)
        return rows.bfloat16().float()  # as they ship

    def head(self) -> Tensor:
        """Return a row for each written id and, last, the row of every other id."""
        rows = self.drawn_head().bfloat16().float()
        learnt = self.target_of[self.learnt_place >= 0]
        rows = rows.index_copy(0, learnt, self.learnt_head)
        return torch.cat([rows, self.unmet_head[None]])

    def drawn_head(self) -> Tensor:
        """Return the rows of the written ids as drawn."""
        return self.pieces[self.piece_order]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return a logit per written id and, last, the logit of each single other id."""
        return hidden @ self.head().T

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the summed cross-entropy over the whole vocabulary, other ids counted."""
        logits = self.logits(hidden).float()
        num_others = self.shape.vocab_size - len(self.written_of)
        offset = logits.new_zeros(logits.shape[-1])
        offset[-1] = math.log(num_others)
        return F.cross_entropy(logits + offset, targets, reduction="sum")

    def _positions(
        self, tokens: int, device: torch.device
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        frequencies, scale = yarn_frequencies(self.shape)
        angles = torch.arange(tokens, device=device)[:, None] * frequencies.to(device)
        rope = (angles.cos() * scale, angles.sin() * scale)
        full = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
        near = full.triu(1 - self.shape.sliding_window)
        hidden = torch.zeros(tokens, 1 + tokens, device=device)
        masks = tuple(hidden.masked_fill(F.pad(~seen, (1, 0)), -1e30) for seen in (near, full))
        return rope, (masks[0], masks[1])


def initialise(model: Nano, seed: int) -> None:
    """Set every parameter of a fresh model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name == "forms":
                parameter.copy_(noise * 0.3 * SPREAD)
            elif "learnt" in name:
                continue
            elif parameter.ndim >= 2:
                spread = 0.2 if "o_proj" in name or "down" in name else 0.5
                parameter.copy_(noise * spread * model.shape.hidden_size**-0.5)
            elif name.endswith("bias"):
                parameter.zero_()
        learnt = torch.from_numpy(model.makeup.learnt).long()
        model.learnt_embedding.zero_()
        model.learnt_head.copy_(model.drawn_head()[model.target_of[learnt]])
