"""One decode step: logits of the next token of up to some hundred sequences, without the host.

Six launches a layer for one row, seven to ten for more; `DecodeStep.run` only launches, so that a
step is captured as one CUDA graph and replayed.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from engines.native.backends.cuda.choices.variants import (
    Choices,
    Grouped,
    StreamLaunch,
    Tiles,
)
from engines.native.backends.cuda.kernels import (
    attention,
    experts,
    experts_grouped,
    linear,
    norm,
    router,
)
from engines.native.backends.cuda.kernels.launch import launch, next_power_of_2
from engines.native.backends.cuda.ranks.exchange import LinkSide
from engines.native.backends.cuda.steps.adapted import Adapted
from engines.native.backends.cuda.steps.buffers import (
    Rows,
    Scratch,
    SlotTensors,
    lists_of_pairs,
)
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.weights.model import LayerWeights, ModelWeights, PackedExperts

_FEW: Final = 32  # rows, at most, whose experts one program chooses


class DecodeStep:
    """The launches of a decode step of one batch bucket."""

    def __init__(
        self,
        shape: Shape,
        weights: ModelWeights,
        cache: Tensor,
        block_size: int,
        rows: int,
        choices: Choices,
        slots: SlotTensors,
        inputs: Rows,
        scratch: Scratch,
        logits: Tensor,
        exchange: LinkSide | None = None,
        adapted: Adapted | None = None,
    ) -> None:
        """`cache` (layers of a kind, blocks, values of a block) as kernels/attention.py has it;
        `logits` (rows or more, vocabulary) float32 is the result, or scratch.x of layers that do
        not end the model. `exchange`: of a rank, whose logits are columns of the whole."""
        self._exchange, self._adapted = exchange, adapted
        self._shape, self._weights, self._cache = shape, weights, cache
        self._block_size, self._rows, self._choices = block_size, rows, choices
        self._slots, self._in, self._s, self._logits = slots, inputs, scratch, logits
        self._pairs = lists_of_pairs(scratch.pairs, rows)
        # Streamed experts of one row add to the residual themselves; of more, the next norm does.
        self._is_one_row = rows == 1 and isinstance(choices.gate_up, StreamLaunch)
        types = shape.config.layer_types
        self._cache_layers = [types[:i].count(kind) for i, kind in enumerate(types)]
        self.skipped: frozenset[str] = frozenset()  # parts left out, to time what they cost
        self._is_alone = True  # no row sees another's K/V of this step

    def run(self) -> None:
        """Launch the step on the current stream."""
        if self._weights.begins:
            self._embed()
        if self._exchange is not None:  # one rank alone has the embedding
            self._spread(self._exchange, self._s.x, is_here=self._weights.begins)
        for index, layer in enumerate(self._weights.layers):
            if self._adapted is not None:
                self._adapted.begin(index)
            if "qkv" not in self.skipped:
                self._qkv(layer, is_first=index == 0)
            if "attention" not in self.skipped:
                self._attention(index, layer)
            if "out" not in self.skipped:
                self._out(layer)
            if "router" not in self.skipped:
                self._route(layer)
            if "gate_up" not in self.skipped:
                self._gate_up(layer.gate_up)
            if "down" not in self.skipped:
                self._down(layer.down)
        if not self._weights.ends:
            self._complete()
        elif "head" not in self.skipped:
            self._head()
        self._finish()

    def _embed(self) -> None:
        shape = self._shape
        self._launch(
            "embed", norm.embed_kernel, (self._rows,), self._in.slots, self._slots.token_ids,
            self._weights.embedding, self._s.x, H=shape.hidden, BLOCK=shape.hidden_block,
            num_warps=4,
        )  # fmt: skip

    def head(self, normed: Tensor) -> None:
        """The logits of rows (rows, hidden) bf16 that another pass has made."""
        tiles, weight = self._choices.head, self._weights.head
        if self._exchange is not None:
            self._spread(self._exchange, normed, is_here=self._weights.begins)
        if self._is_one_row:
            self._gemv("head", normed, None, weight, None, self._logits, tiles)
        else:
            self._product("head", normed, weight, None, self._logits, tiles)
        self._finish()

    def _finish(self) -> None:
        if self._exchange is not None:
            self._exchange.meet()  # the logits of all ranks are there
            self._exchange.finish()

    def _spread(self, exchange: LinkSide, values: Tensor, *, is_here: bool) -> None:
        """Give all ranks the rows of the one that has them."""
        s, eps = self._s, self._shape.config.rms_norm_eps
        exchange.add_norm(
            s.x, values, s.weights, None, values, s.placed, rows=self._rows, top_k=int(is_here),
            eps=eps, is_fresh=True, **self._options("norm"),
        )  # fmt: skip

    def _add_parts(self, exchange: LinkSide) -> None:
        """Add all ranks' parts to the residual stream."""
        s, eps = self._s, self._shape.config.rms_norm_eps
        exchange.add_norm(
            s.x, s.part, s.weights, None, s.normed, s.placed, rows=self._rows, top_k=1, eps=eps,
            **self._options("norm"),
        )  # fmt: skip

    def _launch(
        self, part: str, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any
    ) -> None:
        launch(kernel, grid, *args, **self._options(part), **options)

    def _options(self, part: str) -> dict[str, bool]:
        early = self._choices.early
        return {"is_dependent": bool(early), "is_early": part in early}

    def _norm(self, gain: Tensor, to: Tensor, top_k: int, is_placed: bool = False) -> None:
        """Add the experts' outputs, of `top_k` pairs a row, and norm."""
        if self._exchange is not None and top_k:
            self._norm_of_ranks(self._exchange, self._s.outputs, gain, to, top_k)
            return
        shape = self._shape
        self._launch(
            "norm", norm.add_norm_kernel, (self._rows,),
            self._s.x, self._s.outputs, self._s.weights, gain, to, self._s.placed,
            H=shape.hidden, STRIDE=to.shape[1], BLOCK=shape.hidden_block,
            EPS=shape.config.rms_norm_eps, TOP_K=top_k, IS_WEIGHTED=True, IS_PLACED=is_placed,
            num_warps=8,
        )  # fmt: skip

    def _norm_of_ranks(
        self, exchange: LinkSide, added: Tensor, gain: Tensor, to: Tensor, top_k: int,
        is_placed: bool = False,
    ) -> None:  # fmt: skip
        s = self._s
        exchange.add_norm(
            s.x, added, s.weights, gain, to, s.placed, rows=self._rows, top_k=top_k,
            eps=self._shape.config.rms_norm_eps, is_weighted=added is s.outputs,
            is_placed=is_placed, **self._options("norm"),
        )  # fmt: skip

    def _complete(self) -> None:
        """Add the last layer's experts to the residual stream, as the next layer's norm does."""
        if not self._is_one_row:
            gain = self._weights.layers[-1].moe_norm  # of a tensor that is not read
            self._norm(gain, self._s.normed, self._shape.top_k)

    def _qkv(self, layer: LayerWeights, is_first: bool) -> None:
        s, tiles = self._s, self._choices.qkv
        if self._is_one_row:
            self._gemv("qkv", s.x, layer.attention_norm, layer.qkv, layer.qkv_bias, s.qkv, tiles)
            return
        top_k = 0 if is_first else self._shape.top_k
        self._norm(layer.attention_norm, s.normed, top_k)
        self._product("qkv", s.normed, layer.qkv, layer.qkv_bias, s.qkv, tiles)

    def _attention(self, index: int, layer: LayerWeights) -> None:
        s, shape, c = self._s, self._shape, self._choices
        window = shape.window(index)
        tables = self._slots.window_tables if window else self._slots.full_tables
        splits = 1 if window else c.splits
        self._launch(
            "attention", attention.decode_attention_kernel,
            (shape.config.num_key_value_heads, splits, self._rows),
            s.qkv, self._cache[self._cache_layers[index]], tables, layer.sinks,
            self._in.slots, self._in.positions, self._in.num_rows, self._weights.cosines,
            self._weights.sines,
            s.part_out, s.part_max, s.part_sum, s.row_arrivals, s.attended,
            TABLE_STRIDE=tables.shape[1], KV_HEADS=shape.config.num_key_value_heads,
            GROUP=shape.group, D=shape.config.head_dim, BLOCK=self._block_size, WINDOW=window,
            SPLITS=splits, MIN_SPLIT=c.min_split, BT=c.context_tile,
            STAGES=c.attention_stages,
            SCALE=shape.config.head_dim**-0.5,
            IS_EARLY=self._is_alone and "attention" in c.early, num_warps=c.attention_warps,
        )  # fmt: skip

    def _out(self, layer: LayerWeights) -> None:
        s, tiles, is_added = self._s, self._choices.out, self._exchange is None
        to = s.x if is_added else s.part
        if self._is_one_row:
            self._gemv("out", s.attended, None, layer.out, layer.out_bias, to, tiles, is_added)
        else:
            self._product("out", s.attended, layer.out, layer.out_bias, to, tiles, is_added)
        if self._exchange is not None and not self._is_routed_at_once:
            self._add_parts(self._exchange)

    @property
    def _is_routed_at_once(self) -> bool:
        """Whether the norm before the router is a launch of its own."""
        return isinstance(self._choices.gate_up, Grouped) or self._rows > _FEW

    def _route(self, layer: LayerWeights) -> None:
        if self._is_routed_at_once:
            self._route_many(layer, self._choices.gate_up)
        else:
            self._route_few(layer)

    def _route_few(self, layer: LayerWeights) -> None:
        s, shape, experts_ = self._s, self._shape, self._shape.num_experts
        each = max(self._choices.router_each, experts_ // 64)
        if self._is_one_row:
            self._launch(
                "router", router.route_one_kernel, (experts_ // each,),
                s.x, layer.moe_norm, layer.router, layer.router_bias, s.experts_in, s.router_logits,
                H=shape.hidden, BLOCK=shape.hidden_block, EPS=shape.config.rms_norm_eps, EACH=each,
                num_warps=4,
            )  # fmt: skip
            return
        self._launch(
            "router", router.route_few_kernel, (experts_ // each, self._rows),
            s.x, layer.moe_norm, layer.router, layer.router_bias, self._in.num_rows,
            s.experts_in, s.router_logits, s.tile_arrivals, s.active, self._pairs, s.weights,
            M=self._rows, BM=next_power_of_2(self._rows), H=shape.hidden,
            STRIDE=shape.hidden_stride, BLOCK=shape.hidden_block, E=experts_,
            BE=next_power_of_2(experts_), EACH=each, SLOTS=len(s.active),
            CAPACITY=self._pairs.shape[1], TOP_K=shape.top_k, EPS=shape.config.rms_norm_eps,
            num_warps=4,
        )  # fmt: skip

    def _route_many(self, layer: LayerWeights, choice: Grouped | StreamLaunch) -> None:
        s, shape = self._s, self._shape
        wide, num = next_power_of_2(shape.num_experts), shape.num_experts
        if isinstance(choice, Grouped):
            normed, is_placed = s.experts_in_wide, True
            listed, bm, most = s.tiles, choice.bm, self._num_tiles(choice.bm)
        else:
            normed, is_placed = s.experts_in, False
            listed, bm, most = s.active, 0, len(s.active)
        if self._exchange is None:
            self._norm(layer.moe_norm, normed, 0, is_placed=is_placed)
        else:
            gain = layer.moe_norm
            self._norm_of_ranks(self._exchange, s.part, gain, normed, 1, is_placed=is_placed)
        self._launch(
            "router", router.choose_kernel, (-(-self._rows // 16),),
            normed, layer.router, layer.router_bias, self._in.num_rows,
            self._in.num_rows, s.experts, s.weights, self._rows, IS_CHOSEN=False, H=shape.hidden,
            STRIDE=shape.hidden_stride, E=num, BM=16, BE=max(wide, 16), BK=128,
            STAGES=self._choices.router_stages, TOP_K=shape.top_k, num_warps=4,
        )  # fmt: skip
        self._launch(
            "router", router.list_kernel, (num,),
            s.experts, self._rows * shape.top_k, s.counts, self._pairs, listed,
            s.tile_arrivals, E=num, BE=wide, BM=bm, NUM_TILES=most,
            CAPACITY=self._pairs.shape[1], BLOCK=1024, num_warps=4,
        )  # fmt: skip

    def _num_tiles(self, bm: int) -> int:
        pairs = self._rows * self._shape.top_k
        return min(pairs, self._shape.num_experts + pairs // bm)

    def _num_slots(self) -> int:
        return min(self._shape.num_experts, self._rows * self._shape.top_k)

    def _gate_up(self, packed: PackedExperts) -> None:
        s, shape, choice = self._s, self._shape, self._choices.gate_up
        config = shape.config
        shared: dict[str, Any] = {
            "K": shape.hidden_stride, "INNER": shape.inner, "H_STRIDE": shape.inner_stride,
            "TOP_K": shape.top_k, "ALPHA": config.swiglu_alpha, "LIMIT": config.swiglu_limit,
        }  # fmt: skip
        if isinstance(choice, Grouped):
            self._launch(
                "gate_up", experts_grouped.gate_up_grouped_kernel,
                (-(-shape.inner // 8 // choice.groups), self._num_tiles(choice.bm)),
                s.placed, packed.halves, packed.scales, packed.bias,
                s.tiles, s.counts, self._pairs, self._pairs.shape[1], s.inner_wide,
                X_STRIDE=shape.hidden_stride,
                IS_PACKED=packed.is_packed, **choice.options, **shared,
            )  # fmt: skip
            return
        num_groups = shape.inner // 8
        choice = choice.fitting(num_groups)
        self._launch(
            "gate_up", experts.gate_up_kernel,
            (num_groups // (choice.groups * choice.side), self._num_slots()),
            s.experts_in.view(torch.int32), packed.words, packed.scales, packed.bias, s.active,
            self._pairs, s.router_logits, s.inner, X_WORDS=shape.hidden_stride // 2,
            CAPACITY=self._pairs.shape[1], **self._stream(choice), **shared,
        )  # fmt: skip

    def _down(self, packed: PackedExperts) -> None:
        s, shape, choice = self._s, self._shape, self._choices.down
        if isinstance(choice, Grouped):
            self._launch(
                "down", experts_grouped.down_grouped_kernel,
                (-(-shape.hidden // 16 // choice.groups), self._num_tiles(choice.bm)),
                s.inner_wide, packed.halves, packed.scales, packed.bias, s.tiles,
                s.counts, self._pairs, self._pairs.shape[1], s.outputs, K=shape.inner_stride,
                HIDDEN=shape.hidden, H_STRIDE=shape.inner_stride,
                IS_PACKED=packed.is_packed, **choice.options,
            )  # fmt: skip
            return
        num_groups = shape.hidden // 16
        choice = choice.fitting(num_groups)
        self._launch(
            "down", experts.down_kernel,
            (num_groups // (choice.groups * choice.side), self._num_slots()),
            s.inner.view(torch.int32), packed.words, packed.scales, packed.bias, s.active,
            self._pairs, s.router_logits, s.outputs, s.x if self._exchange is None else s.part,
            s.tile_arrivals, IS_ADDED=self._exchange is None,
            K=shape.inner_stride, HIDDEN=shape.hidden, H_WORDS=shape.inner_stride // 2,
            CAPACITY=self._pairs.shape[1], TOP_K=shape.top_k, **self._stream(choice),
        )  # fmt: skip
        if self._exchange is not None and self._is_one_row:
            self._add_parts(self._exchange)

    def _stream(self, choice: StreamLaunch) -> dict[str, Any]:
        num = self._shape.num_experts
        return {
            "E": num, "BE": next_power_of_2(num), "IS_ONE_ROW": self._is_one_row,
            "STEP": choice.step, "SIDE": choice.side, "GROUPS": choice.groups,
            "STAGES": choice.stages, "num_warps": choice.num_warps,
            **({"maxnreg": choice.registers} if choice.registers else {}),
        }  # fmt: skip

    def _head(self) -> None:
        s, weights, tiles = self._s, self._weights, self._choices.head
        if self._is_one_row:
            self._gemv("head", s.x, weights.norm, weights.head, None, self._logits, tiles)
            return
        self._norm(weights.norm, s.normed, self._shape.top_k)
        self._product("head", s.normed, weights.head, None, self._logits, tiles)

    def _gemv(
        self, part: str, x: Tensor, gain: Tensor | None, weight: Tensor, bias: Tensor | None,
        y: Tensor, tiles: Tiles, is_added: bool = False,
    ) -> None:  # fmt: skip
        n, k = weight.shape
        k1 = next_power_of_2(k) // 2
        if self._adapted is not None:
            self._adapted.shrink(part, x, gain)
        self._launch(
            part, linear.gemv_kernel, (-(-n // tiles.bn),), x, x if gain is None else gain, weight,
            weight if bias is None else bias, y, n, K=k, K1=k1, K2=next_power_of_2(k - k1),
            BN=tiles.bn, EPS=self._shape.config.rms_norm_eps, HAS_NORM=gain is not None,
            HAS_BIAS=bias is not None, IS_ADDED=is_added, num_warps=tiles.num_warps,
        )  # fmt: skip
        if self._adapted is not None:
            self._adapted.expand(part, y)

    def _product(
        self, part: str, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, tiles: Tiles,
        is_added: bool = False,
    ) -> None:  # fmt: skip
        n, k = weight.shape
        bm = min(max(16, next_power_of_2(self._rows)), tiles.bm)
        num_tiles = -(-n // tiles.bn) * -(-self._rows // bm)
        if self._adapted is not None:
            self._adapted.shrink(part, x)
        self._launch(
            part, linear.rows_kernel, (num_tiles, tiles.splits), x, weight,
            weight if bias is None else bias, y, self._s.parts, self._s.tile_arrivals, n,
            y.stride(0), M=self._rows, K=k, BM=bm, BN=tiles.bn, BK=tiles.bk,
            SPLITS=tiles.splits, STAGES=tiles.stages, PREFETCH=self._choices.prefetch,
            HAS_BIAS=bias is not None, IS_ADDED=is_added, IS_SWAPPED=tiles.is_swapped,
            num_warps=tiles.num_warps,
        )  # fmt: skip
        if self._adapted is not None:
            self._adapted.expand(part, y)
