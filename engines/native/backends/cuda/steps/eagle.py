"""An EAGLE3 head beside the backend's graphs: nothing of it waits for the host.

What is kept between steps, on the device: K/V in the blocks of full attention; g (eagle/head.py) of
each slot's last position, and of each block's last position, for sequences that continue from a
cached prefix.

    forward graph    states of three layers -> g of the step's rows -> K/V of its tokens
    draws, accept    g and place of each sequence's last right token -> its slot
    begin, step ...  one guess of each sequence after another, as many as the step wants

Padding rows belong to a scratch slot, with a table of NULL_BLOCK.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from engines.errors import EngineStartError
from engines.native.backends.base import NULL_BLOCK, Batch
from engines.native.backends.cuda.graphs.captured import Graphs
from engines.native.backends.cuda.kernels.head_attention import (
    PADDED_GROUP,
    combined,
    head_attention_kernel,
)
from engines.native.backends.cuda.kernels.head_rows import head_inputs_kernel, head_write_kernel
from engines.native.backends.cuda.kernels.launch import launch, next_power_of_2
from engines.native.backends.cuda.steps.buffers import Rows, SlotTensors
from engines.native.backends.cuda.steps.prefill import PrefillBuffers
from engines.native.backends.cuda.steps.verify import MAX_DRAFTS, Guesses
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from engines.native.eagle.checkpoint import load_eagle
from engines.native.eagle.config import EagleConfig
from engines.native.eagle.head import EagleHead

_MOST_SEQUENCES: Final = 32  # that guess at once: drafting.py asks for no more
_SPLITS: Final = 8  # of a long context
_MIN_SPLIT: Final = 256
_TILE: Final = 64


def load_head(
    config: NativeConfig, model: ModelConfig, weights: ModelWeights, num_positions: int
) -> EagleHead:
    """Read the head that the options name; raises EngineStartError if it does not fit."""
    assert config.draft_dir is not None
    shape = EagleConfig.from_dir(config.draft_dir, model)
    check_head(shape)
    read = load_eagle(
        config.draft_dir, shape, torch.bfloat16, weights.head.device,
        target_embedding=weights.embedding, target_head=lambda: weights.head,
    )  # fmt: skip
    return EagleHead(shape, read, num_positions + MAX_DRAFTS + 1)


def check_head(config: EagleConfig) -> None:
    """Refuse a head that the attention kernel does not compute."""
    group = config.num_attention_heads // config.num_key_value_heads
    if config.head_dim < 16 or config.head_dim != next_power_of_2(config.head_dim):
        raise EngineStartError(
            f"the draft head's head_dim is {config.head_dim}; on device cuda a power of two from 16"
        )
    if group > PADDED_GROUP:
        raise EngineStartError(
            f"the draft head has {group} query heads to a K/V head; on device cuda at most"
            f" {PADDED_GROUP}"
        )


class Taps:
    """Copies of the residual stream after the layers that a head looks at."""

    def __init__(self, config: EagleConfig, states: Tensor) -> None:
        """`states` (rows, layers * target_hidden) receives a step's copies."""
        self._layers, self._width, self.states = config.layers, config.target_hidden_size, states

    def __call__(self, layer: int, x: Tensor) -> None:
        """x (rows, hidden) float32 after a layer."""
        if layer in self._layers:
            first = self._layers.index(layer) * self._width
            self.states[: len(x), first : first + self._width] = x


class DeviceHead:
    """A head's state on the device and what changes it; all of it can be captured."""

    def __init__(
        self, head: EagleHead, num_blocks: int, block_size: int, slots: SlotTensors,
        rows: int, tokens: int,
    ) -> None:  # fmt: skip
        """For steps and prefills of these sizes; the last slot is the scratch slot."""
        config, device = head.config, slots.token_ids.device
        hidden = config.hidden_size
        self._head, self._block_size, self._slots = head, block_size, slots
        self._nobody = len(slots.token_ids) - 1

        def make(*size: int, dtype: torch.dtype = head.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        def buffers(num: int) -> tuple[Tensor, ...]:
            """States, g, the inputs of K/V, and K/V, of `num` rows."""
            widths = len(config.layers) * config.target_hidden_size, hidden, 2 * hidden
            return tuple(make(num, width) for width in (*widths, 2 * config.kv_size))

        self._of_rows, self._of_tokens = buffers(rows), buffers(tokens)
        self.decode_taps = Taps(config, self._of_rows[0])
        self.prefill_taps = Taps(config, self._of_tokens[0])
        self._unknown = torch.full((rows,), -1, dtype=torch.int32, device=device)
        self._cache = make(num_blocks * block_size, 2 * config.kv_size)
        self._last = make(num_blocks, hidden)  # g of each block's last position
        self._kept = make(self._nobody + 1, hidden)  # g of each slot's last position
        self.ends = make(self._nobody + 1, dtype=torch.int64)  # of known K/V, by slot
        most = min(next_power_of_2(self._nobody), _MOST_SEQUENCES)
        self._asked = make(2, most, dtype=torch.int64)  # slots, and the number of wanted drafts
        self._tokens, self._at = make(2, most, dtype=torch.int64)
        self._before = make(most, hidden)
        self._guessed = make(MAX_DRAFTS, most, dtype=torch.int64)  # the latest last
        groups = (most, config.num_key_value_heads, _SPLITS, PADDED_GROUP)
        self._part_out = make(*groups, config.head_dim, dtype=torch.float32)
        self._part_lse = make(*groups, dtype=torch.float32)
        sizes = [1 << i for i in range(most.bit_length())]
        self._begin_graphs = Graphs({n: partial(self._begin, n) for n in sizes}, device)
        self._step_graphs = Graphs({n: partial(self._step, n) for n in sizes}, device)

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The tensors kept with each block: (parts, blocks, values)."""
        return self._cache.view(1, len(self._last), -1), self._last.unsqueeze(0)

    @torch.inference_mode()
    def start(self, batch: Batch, upload: Callable[[list[int]], Tensor]) -> None:
        """Take the g before each new sequence's first row from the block before it.

        Where that is not known, after a step that failed, it is zero.
        """
        size, firsts = self._block_size, {row.slot: row.start for row in batch.rows}
        blocks = []
        for start in batch.starts:
            first = firsts.get(start.slot, 0)
            is_known = first > 0 and first % size == 0
            blocks.append(start.full_blocks[first // size - 1] if is_known else NULL_BLOCK)
        slots = upload([start.slot for start in batch.starts]).long()
        self._kept.index_copy_(0, slots, self._last[upload(blocks).long()])

    def after_decode(self, num: int, rows: Rows) -> None:
        """Take in a step of rows without drafts: their tokens are their slots' last."""
        self._take_in(self._unknown[:num], rows.slots, rows.positions, rows.num_rows)

    def after_verify(self, num: int, rows: Rows, guesses: Guesses) -> None:
        """Take in a step of rows some of which are drafts; `accept` keeps the right ones."""
        tokens = guesses.token_ids[:num]
        self._take_in(tokens, rows.slots, rows.positions, rows.num_rows, is_kept=False)

    def accept(self, num: int, rows: Rows, guesses: Guesses) -> None:
        """Keep g of the last right row of each sequence, once all rows are sampled."""
        slots, is_row = self._owners(rows.slots[:num], rows.num_rows)
        guessed, firsts = guesses.token_ids[:num], guesses.firsts[:num].long().clamp(min=0)
        is_guess = (guessed >= 0) & is_row
        is_wrong = is_guess & (rows.sampled[:num].roll(1) != guessed)
        wrong = is_wrong.long().cumsum(0)
        is_reached = wrong == wrong[firsts]
        is_followed = (is_reached & is_guess).roll(-1)  # the first row is not a guess
        is_last = is_reached & ~is_followed & is_row
        self._keep(self._of_rows[1][:num], slots, rows.positions[:num], is_last)

    def after_prefill(self, num: int, buffers: PrefillBuffers) -> None:
        tokens = buffers.token_ids[:num]
        self._take_in(tokens, buffers.slots, buffers.positions, buffers.num_tokens, is_prefill=True)

    def _owners(self, slots: Tensor, num_rows: Tensor) -> tuple[Tensor, Tensor]:
        """The slot of each row (the scratch slot for padding), and a mask of the real rows."""
        is_row = torch.arange(len(slots), device=slots.device) < num_rows
        return torch.where(is_row, slots, self._nobody).long(), is_row

    def _take_in(
        self, tokens: Tensor, slots: Tensor, positions: Tensor, num_rows: Tensor,
        *, is_prefill: bool = False, is_kept: bool = True,
    ) -> None:  # fmt: skip
        """Write the K/V of rows, those of a sequence side by side, and keep their g."""
        head, config, num = self._head, self._head.config, len(tokens)
        w, tables, hidden = head.weights, self._slots.full_tables, config.hidden_size
        buffers = self._of_tokens if is_prefill else self._of_rows
        states, fused, x, kv = (each[:num] for each in buffers)
        torch.mm(states, w.fuse.t(), out=fused)
        shared: dict[str, Any] = {"H": hidden, "BLOCK": next_power_of_2(hidden), "num_warps": 4}
        launch(
            head_inputs_kernel, (num,), slots, tokens, self._slots.token_ids, num_rows, fused,
            self._kept, w.embedding, w.embedding_norm, w.hidden_norm, x,
            EPS=config.rms_norm_eps, **shared,
        )  # fmt: skip
        torch.mm(x, w.qkv[config.q_size :].t(), out=kv)
        launch(
            head_write_kernel, (num,), slots, positions, num_rows, tables, kv, head.cosines,
            head.sines, self._cache, fused, self._last, self._kept, self.ends,
            TABLE_STRIDE=tables.shape[1], KV_HEADS=config.num_key_value_heads,
            HEADS_BLOCK=next_power_of_2(config.num_key_value_heads), D=config.head_dim,
            SIZE=self._block_size, IS_KEPT=is_kept, **shared,
        )  # fmt: skip

    def _keep(self, fused: Tensor, slots: Tensor, positions: Tensor, is_last: Tensor) -> None:
        owners = torch.where(is_last, slots, self._nobody)
        self._kept[owners] = fused
        self.ends[owners] = positions.long() + 1

    @torch.inference_mode()
    def propose(
        self, slots: list[int], wanted: list[int], upload: Callable[[list[int]], Tensor]
    ) -> Tensor:
        """Enqueue the drafts after each slot's last token: (drafts, sequences).

        As many of all as the one with most wants; those beyond its own a slot takes as noise.
        """
        num, width = len(slots), self._asked.shape[1]
        padding = width - num
        packed = [*slots, *[self._nobody] * padding, *wanted, *[0] * padding]
        self._asked.copy_(upload(packed).view(2, width))
        self._begin_graphs.run(num)
        for _ in range(max(wanted)):
            self._step_graphs.run(num)
        return self._guessed[-max(wanted) :, :num]

    def _begin(self, num: int) -> None:
        slots = self._asked[0, :num]
        self._tokens[:num] = self._slots.token_ids[slots].clamp(min=0)
        self._before[:num] = self._kept[slots]
        self._at[:num] = self.ends[slots]

    def _step(self, num: int) -> None:
        """Draft one token per sequence; rows that want none write to a scratch block."""
        slots, wanted = self._asked[:, :num]
        slots = torch.where(wanted > 0, slots, self._nobody)
        attend = partial(self._attend, slots, self._at[:num])
        guesses, states = self._head.guess(self._tokens[:num], self._before[:num], attend)
        self._guessed[:-1, :num] = self._guessed[1:, :num].clone()
        self._guessed[-1, :num] = guesses
        self._tokens[:num] = guesses
        self._before[:num] = states
        self._at[:num] += 1
        wanted -= 1

    def _attend(self, slots: Tensor, positions: Tensor, qkv: Tensor) -> Tensor:
        config, size, num = self._head.config, self._block_size, len(slots)
        num_heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        heads = qkv.unflatten(1, (-1, config.head_dim))
        rotated = self._head.rotated(heads[:, : num_heads + kv_heads], positions)
        q = rotated[:, :num_heads].contiguous()
        k, v = rotated[:, num_heads:].flatten(1), qkv[:, config.q_size + config.kv_size :]
        tables = self._slots.full_tables
        blocks = tables[slots, positions // size].long()
        self._cache[blocks * size + positions % size] = torch.cat((k, v), 1)
        launch(
            head_attention_kernel, (kv_heads, _SPLITS, num), q, self._cache, tables, slots,
            positions, self._part_out, self._part_lse, TABLE_STRIDE=tables.shape[1],
            KV_HEADS=kv_heads, GROUP=num_heads // kv_heads, D=config.head_dim, BLOCK=size,
            SPLITS=_SPLITS, MIN_SPLIT=_MIN_SPLIT, BT=_TILE, SCALE=config.head_dim**-0.5,
            num_warps=4,
        )  # fmt: skip
        attended = combined(self._part_out[:num], self._part_lse[:num], num_heads // kv_heads)
        return attended.to(qkv.dtype)
