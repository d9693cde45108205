"""An EAGLE3 head beside the CPU's model: its K/V, and its drafts after a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.native.backends.base import Sampled
from engines.native.backends.cpu.attention import Layout
from engines.native.eagle.head import EagleHead
from engines.native.host.slots import Slot, Span


class HeadGuesser:
    """Keeps a head's K/V in the blocks of full attention, and proposes tokens from them.

    g of a block's last position is kept with the block: a sequence that continues from a cached
    prefix needs it
    for the first position after it. g of a sequence's last positions is kept in its slot.
    """

    def __init__(self, head: EagleHead, num_blocks: int, block_size: int) -> None:
        config, dtype = head.config, head.dtype
        self._head, self._block_size = head, block_size
        self._cache = torch.zeros((num_blocks * block_size, 2 * config.kv_size), dtype=dtype)
        self._last = torch.zeros((num_blocks, config.hidden_size), dtype=dtype)  # g, by block

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layers after which the head looks at the residual stream."""
        return self._head.config.layers

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The tensors kept with each block: (parts, blocks, values)."""
        return self._cache.view(1, len(self._last), -1), self._last.unsqueeze(0)

    @torch.inference_mode()
    def take_in(self, spans: Sequence[Span], layout: Layout, states: list[Tensor]) -> None:
        """Write the K/V of a step's tokens; states (tokens, hidden) of each layer looked at."""
        fused = self._head.fuse(torch.cat(states, -1))
        before = fused.roll(1, 0)
        is_ends = layout.positions % self._block_size == self._block_size - 1
        blocks = layout.full.slots // self._block_size
        for span, end in zip(spans, layout.ends, strict=True):
            first = end - span.num_tokens
            before[first] = self._before(span.slot, span.start)
        self._last[blocks[is_ends]] = fused[is_ends]
        for span, end in zip(spans, layout.ends, strict=True):
            kept = 1 + len(span.drafts)  # of which the next span follows one
            span.slot.fused = (span.end - kept, fused[end - kept : end].clone())
        kv = self._head.keys_values(layout.input_ids, before, layout.positions)
        self._cache[layout.full.slots] = kv

    @torch.inference_mode()
    def propose(self, spans: Sequence[Span], sampled: Sequence[Sampled]) -> list[tuple[int, ...]]:
        """Drafts after the sampled tokens, which the slots have: as many as each span wants."""
        proposed: list[list[int]] = [[] for _ in spans]
        rows = [i for i, span in enumerate(spans) if span.num_wanted and sampled[i].token_ids]
        tokens = torch.tensor([spans[i].slot.token_ids[-1] for i in rows])
        at = [len(spans[i].slot.token_ids) - 1 for i in rows]
        before = [self._before(spans[i].slot, p) for i, p in zip(rows, at, strict=True)]
        hidden = torch.stack(before) if rows else torch.empty(0)
        while rows:
            chain = _Chain([spans[i].slot for i in rows], at, self._block_size)
            tokens, hidden = self._head.guess(
                tokens,
                hidden,
                lambda qkv, chain=chain: self._attend(qkv, chain),  # type: ignore[misc]
            )
            for i, token in zip(rows, tokens.tolist(), strict=True):
                proposed[i].append(token)
            left = [k for k, i in enumerate(rows) if len(proposed[i]) < spans[i].num_wanted]
            rows, at = [rows[k] for k in left], [at[k] + 1 for k in left]
            tokens, hidden = tokens[left], hidden[left]
        return [tuple(each) for each in proposed]

    def _before(self, slot: Slot, position: int) -> Tensor:
        """g of the position before this one; zeros where it is not known.

        That is after a step that failed: a guess may be worse then, never a token.
        """
        if slot.fused is not None:
            start, fused = slot.fused
            if start < position <= start + len(fused):
                return fused[position - 1 - start]
        if position > 0 and position % self._block_size == 0:
            return self._last[slot.full_blocks[position // self._block_size - 1]]
        return torch.zeros_like(self._last[0])

    def _attend(self, qkv: Tensor, chain: _Chain) -> Tensor:
        """Attention of one query of each sequence, from position 1 to its own."""
        config = self._head.config
        heads = qkv.unflatten(1, (-1, config.head_dim))
        num_rotated = config.num_attention_heads + config.num_key_value_heads
        rotated = self._head.rotated(heads[:, :num_rotated], chain.positions)
        q, k = rotated.split((config.num_attention_heads, config.num_key_value_heads), 1)
        kv = torch.cat((k.flatten(1), qkv[:, config.q_size + config.kv_size :]), 1)
        self._cache[chain.slots] = kv
        seen = self._cache.view(-1, self._block_size, kv.shape[1])[chain.blocks]
        keys, values = seen.flatten(1, 2).unflatten(2, (2, -1, config.head_dim)).unbind(2)
        attended = F.scaled_dot_product_attention(
            q.unsqueeze(2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=chain.mask,
            enable_gqa=True,
        )
        return attended.flatten(1)


class _Chain:
    """Where one guess of each sequence writes its K/V, and what it sees."""

    def __init__(self, slots: list[Slot], at: list[int], block_size: int) -> None:
        self.positions = torch.tensor(at)
        tables = [
            slot.full_blocks[: position // block_size + 1]
            for slot, position in zip(slots, at, strict=True)
        ]
        width = max(map(len, tables))
        self.blocks = torch.tensor([table + [0] * (width - len(table)) for table in tables])
        own = self.blocks.gather(1, (self.positions // block_size).unsqueeze(1)).squeeze(1)
        self.slots = own * block_size + self.positions % block_size
        keys = torch.arange(width * block_size)
        is_seen = (keys > 0) & (keys <= self.positions.unsqueeze(1))
        self.mask = is_seen[:, None, None]  # (sequences, 1, 1, keys)
