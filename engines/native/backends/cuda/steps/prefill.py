"""Chunks of prompts: many tokens of some sequences at once, replayed as CUDA graphs too.

The dense products are cuBLAS's; attention, routing and the experts are our kernels. A graph is
for a number of tokens; what is beyond the batch's own is padding, which no kernel touches. In the
last layer all tokens write their K/V, and only those that are sampled after or scored are computed
further.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.choices.variants import LongAttention, PrefillChoices
from engines.native.backends.cuda.kernels import (
    experts_grouped,
    hopper_attention,
    norm,
    prefill_attention,
    router,
    row_attention,
)
from engines.native.backends.cuda.kernels.launch import launch, next_power_of_2
from engines.native.backends.cuda.memory.part_sums import PartSums, most_parts
from engines.native.backends.cuda.ranks.exchange import LinkSide
from engines.native.backends.cuda.steps.adapted import Adapted
from engines.native.backends.cuda.steps.buffers import SlotTensors, lists_of_pairs
from engines.native.backends.cuda.steps.row_parts import NUMBERS, DecodingRow, parts_of
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.steps.token_runs import (
    TILE_TOKENS,
    PlacedRun,
    TokenRun,
    placed_runs,
    tiles_of,
)
from engines.native.backends.cuda.weights.model import LayerWeights, ModelWeights


class LayerTiles(NamedTuple):
    """The tiles of a layer's attention. Where all keys are seen, prompts have either full or wide
    ones, and decoding rows have parts."""

    windows: Tensor
    full: Tensor
    wide: Tensor
    num_wide: Tensor
    parts: Tensor
    num_parts: Tensor


class _Packed(NamedTuple):
    """The parts of a packed batch: numbers, what each token has, tiles, and what a chunk has."""

    num_tokens: Tensor
    num_wide: Tensor
    num_last_wide: Tensor
    num_parts: Tensor
    token_ids: Tensor
    slots: Tensor
    positions: Tensor
    is_wanted: Tensor  # after the last layer
    windows: Tensor
    full: Tensor
    wide: Tensor
    last_windows: Tensor  # of the last layer
    last_full: Tensor
    last_wide: Tensor
    parts: Tensor  # of decoding rows, in every layer
    last_rows: Tensor  # of each chunk

    @property
    def tiles(self) -> LayerTiles:
        """The tiles of all layers but the last."""
        return LayerTiles(
            self.windows.view(-1, 4), self.full.view(-1, 4), self.wide.view(-1, 4), self.num_wide,
            self.parts.view(-1, NUMBERS), self.num_parts,
        )  # fmt: skip

    @property
    def last_tiles(self) -> LayerTiles:
        return LayerTiles(
            self.last_windows.view(-1, 4), self.last_full.view(-1, 4), self.last_wide.view(-1, 4),
            self.num_last_wide, self.parts.view(-1, NUMBERS), self.num_parts,
        )  # fmt: skip


class PrefillBuffers:
    """The tensors that a prefill reads and writes, for these numbers of tokens and sequences."""

    def __init__(
        self, shape: Shape, tokens: int, sequences: int, device: torch.device,
        least_depth: float = math.inf,
    ) -> None:  # fmt: skip
        """`least_depth`: mean position of the prompts' tokens from which on layers that see all
        keys take wide tiles, hopper_attention.py's."""
        config, pairs = shape.config, tokens * shape.top_k
        self._least_depth = least_depth
        self.wide_tokens = max(hopper_attention.ROWS // shape.group, 1)  # of a tile there
        tiles, wide_tiles = (
            4 * (tokens // each + sequences) for each in (TILE_TOKENS, self.wide_tokens)
        )

        def make(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        ints = torch.int32
        of_tiles = [tiles, tiles, wide_tiles]
        num_parts = most_parts(sequences)
        self._sizes = (
            [1] * 4 + [tokens] * 4 + of_tiles + of_tiles + [NUMBERS * num_parts, sequences]
        )
        self.packed = make(sum(self._sizes), dtype=ints)
        self.copies = [self.packed]  # of each stage, set together
        parts = _Packed(*self.packed.split(self._sizes))
        self.num_tokens, self.last_rows = parts.num_tokens, parts.last_rows
        self.token_ids, self.slots, self.positions = parts.token_ids, parts.slots, parts.positions
        self.is_wanted = parts.is_wanted
        self.tiles, self.last_tiles = parts.tiles, parts.last_tiles
        self.part_sums = PartSums(config, sequences, device)
        self.x = make(tokens, shape.hidden, dtype=torch.float32)
        self.normed = make(tokens, shape.hidden_stride)
        self.placed = make(tokens, shape.hidden_stride)  # kernels/fragments.py's place
        self.qkv = make(tokens, shape.qkv_size)
        self.q = make(tokens, config.q_size)
        self.attended = make(tokens, config.q_size)
        self.projected = make(tokens, shape.hidden)
        self.inner = make(pairs, shape.inner_stride)
        self.outputs = make(pairs, shape.hidden)
        self.experts = make(pairs, dtype=ints)
        self.weights = make(pairs, dtype=torch.float32)
        self.counts = make(shape.num_experts, dtype=ints)
        self.arrivals = make(1, dtype=ints)  # of programs; the kernel leaves it at zero
        self.pairs = make(shape.num_experts, tokens, dtype=ints)
        self.expert_tiles = make(shape.num_experts + pairs, dtype=ints)

    def pack(self, chunks: list[TokenRun], to: Tensor) -> None:
        """Write a batch into `to`, a host tensor like `packed`."""
        parts = _Packed(*to.split(self._sizes))
        parts.slots.fill_(-1)
        parts.is_wanted.zero_()
        ids: list[int] = []
        its_slots: list[int] = []
        places: list[int] = []
        rows: list[int] = []
        for chunk in chunks:
            count = len(chunk.token_ids)
            ids += chunk.token_ids
            its_slots += [chunk.slot] * count
            places += chunk.positions
            rows.append(len(ids) - 1)
            parts.is_wanted[len(ids) - chunk.num_states : len(ids)] = 1
        parts.num_tokens[0] = len(ids)
        parts.token_ids[: len(ids)] = torch.tensor(ids)
        parts.slots[: len(ids)] = torch.tensor(its_slots)
        parts.positions[: len(ids)] = torch.tensor(places)
        parts.last_rows[: len(rows)] = torch.tensor(rows)
        self._pack_attention(chunks, parts)

    def _pack_attention(self, chunks: list[TokenRun], to: _Packed) -> None:
        placed = placed_runs(chunks)
        prompts = [each for each in placed if not each.run.is_row]
        rows = [DecodingRow(run.slot, row, run.start) for run, row in placed if run.is_row]
        described = parts_of(rows)
        to.num_parts[0] = len(described)
        to.tiles.parts[: len(described)] = described
        num = sum(len(run.token_ids) for run, _ in prompts)
        depth = sum(len(run.token_ids) * (run.start + run.positions[-1]) / 2 for run, _ in prompts)
        is_deep = depth >= self._least_depth * max(num, 1)
        for tiles, is_last in ((to.tiles, False), (to.last_tiles, True)):
            self._pack_tiles(placed, prompts, tiles, is_deep, is_last=is_last)

    def _pack_tiles(
        self, placed: list[PlacedRun], prompts: list[PlacedRun], to: LayerTiles, is_deep: bool, *,
        is_last: bool,
    ) -> None:  # fmt: skip
        windows = tiles_of(placed, TILE_TOKENS, is_last=is_last)
        full = tiles_of(prompts, self.wide_tokens if is_deep else TILE_TOKENS, is_last=is_last)
        wide = full[:0]
        if is_deep:  # hopper_attention.py takes the last first: those that see most
            full, wide = wide, full[full[:, 2].argsort()]
        to.num_wide[0] = len(wide)
        for part, described in zip(to[:3], (windows, full, wide), strict=True):
            part.zero_()
            part[: len(described)] = described


class Prefill:
    """The launches of a prefill of `num` tokens; the residual stream is left in buffers.x."""

    def __init__(
        self,
        shape: Shape,
        weights: ModelWeights,
        cache: Tensor,
        block_size: int,
        tokens: int,
        slots: SlotTensors,
        buffers: PrefillBuffers,
        choices: PrefillChoices,
        exchange: LinkSide | None = None,
        adapted: Adapted | None = None,
    ) -> None:
        self._exchange, self._adapted = exchange, adapted  # of a rank; with adapters
        self._shape, self._weights, self._cache = shape, weights, cache
        self._block_size, self._tokens = block_size, tokens
        self._slots, self._b = slots, buffers
        self._choices, self._num_sms = choices, Card.of(cache.device).num_sms
        self._pairs = lists_of_pairs(buffers.pairs, tokens)
        types = shape.config.layer_types
        self._cache_layers = [types[:i].count(kind) for i, kind in enumerate(types)]
        self.skipped: frozenset[str] = frozenset()  # parts left out, to time what they cost

    def run(self) -> None:
        """Launch the chunk on the current stream."""
        b, shape = self._b, self._shape
        if self._weights.begins:
            launch(
                norm.embed_chunk_kernel, (self._tokens,), b.token_ids, b.slots,
                self._slots.token_ids, self._weights.embedding, b.x, H=shape.hidden,
                BLOCK=shape.hidden_block, num_warps=4,
            )  # fmt: skip
        if self._exchange is not None:  # one rank alone has the embedding
            self._exchange.add_norm(
                b.x, b.x, b.weights, None, b.normed, b.placed, rows=self._tokens,
                top_k=int(self._weights.begins), eps=shape.config.rms_norm_eps, is_fresh=True,
            )  # fmt: skip
        for index, layer in enumerate(self._weights.layers):
            self._norm(layer.attention_norm, b.outputs, 0 if index == 0 else self._shape.top_k)
            is_last = self._weights.ends and index == len(self._weights.layers) - 1
            self._attend(index, layer, b.last_tiles if is_last else b.tiles)
            self._norm(layer.moe_norm, b.projected, 1, is_experts=True)
            if "experts" not in self.skipped:
                self._experts(layer, is_last=is_last)
        weights = self._weights
        gain = weights.norm if weights.ends else weights.layers[-1].moe_norm
        self._norm(gain, b.outputs, self._shape.top_k)
        if self._exchange is not None:
            self._exchange.finish()

    def _norm(self, gain: Tensor, added: Tensor, rows: int, is_experts: bool = False) -> None:
        """Add `rows` rows a token of `added`, which the experts have weights for, and norm."""
        b, shape = self._b, self._shape
        if self._exchange is not None and rows:
            self._exchange.add_norm(
                b.x, added, b.weights, gain, b.normed, b.placed, rows=self._tokens, top_k=rows,
                eps=shape.config.rms_norm_eps, is_weighted=added is b.outputs,
                is_placed=is_experts,
            )  # fmt: skip
            return
        launch(
            norm.add_norm_kernel, (self._tokens,), b.x, added, b.weights, gain, b.normed, b.placed,
            H=shape.hidden, STRIDE=shape.hidden_stride, BLOCK=shape.hidden_block,
            EPS=shape.config.rms_norm_eps, TOP_K=rows, IS_WEIGHTED=added is b.outputs,
            IS_PLACED=is_experts, num_warps=8,
        )  # fmt: skip

    def _attend(self, index: int, layer: LayerWeights, tiles: LayerTiles) -> None:
        b, shape, n = self._b, self._shape, self._tokens
        config, cache = shape.config, self._cache[self._cache_layers[index]]
        window = shape.window(index)
        tables = self._slots.window_tables if window else self._slots.full_tables
        normed = b.normed[:n, : shape.hidden]
        if self._adapted is not None:
            self._adapted.begin(index)
        self._product("qkv", layer.qkv_bias, normed, layer.qkv, b.qkv[:n])
        shared: dict[str, Any] = {
            "TABLE_STRIDE": tables.shape[1], "BLOCK": self._block_size,
            "KV_HEADS": config.num_key_value_heads, "D": config.head_dim,
        }  # fmt: skip
        launch(
            prefill_attention.rotate_write_kernel, (n,), b.qkv, b.q, cache, tables, b.slots,
            b.positions, self._weights.cosines, self._weights.sines,
            HEADS=config.num_attention_heads, BH=next_power_of_2(config.num_attention_heads),
            SCALE=config.head_dim**-0.5 * math.log2(math.e), num_warps=4, **shared,
        )  # fmt: skip
        if "attention" not in self.skipped:
            shared |= {"GROUP": shape.group, "WINDOW": window}
            self._attend_tiles(cache, tables, layer.sinks, tiles, shared)
        self._product("out", layer.out_bias, b.attended[:n], layer.out, b.projected[:n])

    def _product(self, part: str, bias: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> None:
        torch.addmm(bias, x, weight.t(), out=y)
        if self._adapted is not None:
            self._adapted.shrink(part, x)
            self._adapted.expand(part, y)

    def _attend_tiles(
        self, cache: Tensor, tables: Tensor, sinks: Tensor, tiles: LayerTiles,
        shared: dict[str, Any],
    ) -> None:  # fmt: skip
        """Attention of the chunk's narrow tiles and of its wide ones; one kind has none."""
        b, heads = self._b, self._shape.config.num_key_value_heads
        is_full, choice, n = shared["WINDOW"] == 0, self._choices.attention, self._tokens
        if is_full and self._choices.long_attention is not None:
            self._attend_wide_tiles(
                self._choices.long_attention, cache, tables, sinks, tiles, shared
            )
        most = min(n // TILE_TOKENS + len(b.last_rows), n)
        launch(
            prefill_attention.prefill_attention_kernel, (most, heads), b.q, cache, tables, sinks,
            tiles.full if is_full else tiles.windows, b.attended, BQ=TILE_TOKENS, BT=choice.tile,
            STAGES=choice.stages, num_warps=choice.num_warps, **shared,
        )  # fmt: skip
        if is_full:
            self._attend_rows(cache, tables, sinks, tiles, shared)

    def _attend_rows(
        self, cache: Tensor, tables: Tensor, sinks: Tensor, tiles: LayerTiles,
        shared: dict[str, Any],
    ) -> None:  # fmt: skip
        b, choice, sums = self._b, self._choices.rows, self._b.part_sums
        heads = self._shape.config.num_key_value_heads
        programs = min(max(choice.programs * self._num_sms // heads, 1), len(tiles.parts))
        shared = {name: value for name, value in shared.items() if name != "WINDOW"}
        launch(
            row_attention.row_attention_kernel, (heads, programs), b.q, cache, tables, sinks,
            tiles.parts, tiles.num_parts, sums.out, sums.peak, sums.total, sums.arrivals,
            b.attended, BT=choice.tile, STAGES=choice.stages, num_warps=choice.num_warps, **shared,
        )  # fmt: skip

    def _attend_wide_tiles(
        self, choice: LongAttention, cache: Tensor, tables: Tensor, sinks: Tensor,
        tiles: LayerTiles, shared: dict[str, Any],
    ) -> None:  # fmt: skip
        b, config = self._b, self._shape.config
        pages = hopper_attention.pages(
            cache, config.num_key_value_heads, config.head_dim, self._block_size, choice.tile
        )
        launch(
            hopper_attention.hopper_attention_kernel, (self._num_sms,), b.q, pages, tables, sinks,
            tiles.wide, tiles.num_wide, b.attended, BT=choice.tile, STAGES=choice.stages,
            num_warps=4, **shared,
        )  # fmt: skip

    def _experts(self, layer: LayerWeights, *, is_last: bool) -> None:
        b, shape, n = self._b, self._shape, self._tokens
        config, num = shape.config, shape.num_experts
        wide, rows = next_power_of_2(num), 16 if n < 1024 else 32
        launch(
            router.choose_kernel, (-(-n // rows),), b.normed, layer.router, layer.router_bias,
            b.num_tokens, b.is_wanted, b.experts, b.weights, n, IS_CHOSEN=is_last, H=shape.hidden,
            STRIDE=shape.hidden_stride, E=num, BM=rows, BE=max(wide, 16), BK=128,
            STAGES=self._choices.router_stages, TOP_K=shape.top_k, num_warps=4,
        )  # fmt: skip
        up, down = self._choices.gate_up, self._choices.down
        tiles = min(n * shape.top_k, num + n * shape.top_k // up.bm)
        launch(
            router.list_kernel, (num,), b.experts, n * shape.top_k, b.counts, self._pairs,
            b.expert_tiles, b.arrivals, E=num, BE=wide, BM=up.bm, NUM_TILES=tiles,
            CAPACITY=self._pairs.shape[1], BLOCK=1024 if n < 4096 else 4096,
            num_warps=4 if n < 4096 else 8,
        )  # fmt: skip
        shared: dict[str, Any] = {
            "H_STRIDE": shape.inner_stride, "BM": up.bm, "TAIL": up.tail,
            "IS_PACKED": layer.gate_up.is_packed,
        }  # fmt: skip
        lists = (b.expert_tiles, b.counts, self._pairs, self._pairs.shape[1])
        launch(
            experts_grouped.gate_up_grouped_kernel, (-(-shape.inner // 8 // up.groups), tiles),
            b.placed, layer.gate_up.halves, layer.gate_up.scales, layer.gate_up.bias, *lists,
            b.inner, K=shape.hidden_stride, INNER=shape.inner, X_STRIDE=shape.hidden_stride,
            TOP_K=shape.top_k, ALPHA=config.swiglu_alpha, LIMIT=config.swiglu_limit,
            GROUPS=up.groups, TILES=up.tiles, STAGES=up.stages, num_warps=up.num_warps, **shared,
        )  # fmt: skip
        launch(
            experts_grouped.down_grouped_kernel, (-(-shape.hidden // 16 // down.groups), tiles),
            b.inner, layer.down.halves, layer.down.scales, layer.down.bias, *lists, b.outputs,
            K=shape.inner_stride, HIDDEN=shape.hidden, GROUPS=down.groups, TILES=down.tiles,
            STAGES=down.stages, num_warps=down.num_warps, **shared,
        )  # fmt: skip
