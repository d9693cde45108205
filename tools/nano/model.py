"""The gpt-oss architecture in plain torch, small and batched, for training nano.

Few rows of the vocabulary are parameters; the others are drawn (rows.py). tools/nano/pack.py
writes the tensors under the published names, profiles/checkpoints/compact.py the whole vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiles.checkpoints.compact import (
    PIECE_SHARES,
    SPREAD,
    WORD_SHARE,
    Makeup,
)
from tools.nano.layers import Layer, Shape, yarn_frequencies

Positions = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


class _Rows(torch.autograd.Function):
    """Rows of a table, whose gradient is added up in place: no sorting, nothing to wait for."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        """Return table[index]."""
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Add the gradient of every row to that of the table."""
        (index,), (grad,) = ctx.saved_tensors, grads
        total = torch.zeros(ctx.shape, dtype=grad.dtype, device=grad.device)
        return total.index_add_(0, index.flatten(), grad.reshape(-1, ctx.shape[1])), None


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Return rows of a table, for which the gradients are added up in place."""
    rows: Tensor = _Rows.apply(table, index)  # type: ignore[no-untyped-call]
    return rows


class Nano(nn.Module):
    """The whole model; most rows of the vocabulary are drawn, as `Makeup` says."""

    words: Tensor  # [words, hidden]
    pieces: Tensor  # [written, hidden]
    word_of: Tensor
    form_of: Tensor
    spelling_of: Tensor
    written_of: Tensor  # the ids that are written
    target_of: Tensor  # an id's place among them
    learnt_targets: Tensor  # the learnt ids' places
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
        learnt = torch.from_numpy(makeup.learnt).long()
        self._hold("learnt_targets", self.target_of[learnt])
        self._hold("word_order", torch.arange(len(words)))
        self._hold("piece_order", torch.arange(len(pieces)))
        self._known_positions: dict[tuple[int, torch.device], Positions] = {}

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
        met, index = token_ids.unique(return_inverse=True)
        return self.hidden_of(met, index)

    def hidden_of(self, met: Tensor, index: Tensor) -> Tensor:
        """The same of the ids met, each once, and every token's place among them."""
        rope, masks = self.positions(index.shape[1], index.device)
        x = rows_of(self.embedding(met, self.drawn_head()), index)
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
        rows = rows + rows_of(F.pad(self.learnt_embedding, (0, 0, 1, 0)), place)
        return rows.bfloat16().float()  # as they ship

    def head(self) -> Tensor:
        """Return a row for each written id and, last, the row of every other id."""
        rows = self.drawn_head().bfloat16().float()
        rows = rows.index_copy(0, self.learnt_targets, self.learnt_head)
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
        # Padded and not assigned: a graph's capture copies nothing from the CPU.
        offset = F.pad(logits.new_zeros(logits.shape[-1] - 1), (0, 1), value=math.log(num_others))
        return F.cross_entropy(logits + offset, targets, reduction="sum")

    def positions(self, tokens: int, device: torch.device) -> Positions:
        """Return the rotations and the masks for a length, made once."""
        if (tokens, device) not in self._known_positions:
            self._known_positions[tokens, device] = self._positions(tokens, device)
        return self._known_positions[tokens, device]

    def _positions(self, tokens: int, device: torch.device) -> Positions:
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
