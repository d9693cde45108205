"""A decode step whose sequences bring drafts: their rows are decoded at once."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.native.backends.base import Row
from engines.native.backends.cuda.graphs.captured import step_sizes
from engines.native.backends.cuda.kernels import verify
from engines.native.backends.cuda.kernels.launch import launch
from engines.native.backends.cuda.steps.decode import DecodeStep
from engines.native.backends.cuda.weights.model import LayerWeights
from engines.native.config import ModelConfig, NativeConfig

MAX_DRAFTS: Final = 7  # of a sequence: its rows are 8 then

# A layer's time, in parts of what one expert takes: what does not depend on the rows, each
# expert that is read, each row. Of 20b and 120b on an H100, 1 to 128 rows (docs/engine.md).
_FIXED: Final = 11.0
_PER_ROW: Final = 0.16


class StepTime(NamedTuple):
    """The relative time of a step; implements engines.native.backends.base.StepCost."""

    num_experts: int
    top_k: int
    max_rows: int

    def __call__(self, num_sequences: int, num_drafts: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = num_sequences + num_drafts
        is_missed = (1 - self.top_k / self.num_experts) ** rows  # an expert, by all rows
        time = _FIXED + self.num_experts * (1 - is_missed) + _PER_ROW * rows
        return np.where((num_drafts > 0) & (rows > self.max_rows), np.inf, time)


def draft_capacity(config: NativeConfig, model: ModelConfig) -> dict[str, Any]:
    if config.speculation == "none":
        return {}
    sizes = step_sizes(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        has_drafts=True,
        is_invariant=config.batch_invariant,
    )
    cost = StepTime(model.num_local_experts, model.num_experts_per_tok, sizes.verify[-1])
    return {"max_drafts": MAX_DRAFTS, "step_cost": cost}


def expanded(rows: list[Row]) -> tuple[list[Row], list[int]]:
    """A row of one token for each guess too, after its sequence's own; and whose each is."""
    tokens, places = [], []
    for place, row in enumerate(rows):
        for i in range(1 + len(row.drafts)):
            tokens.append(row._replace(start=row.start + i, end=row.end + i, drafts=()))
            places.append(place)
    return tokens, places


class Guesses:
    """What of a step's rows is guessed: parts of one tensor, which the host sets with one copy."""

    def __init__(self, num: int, device: torch.device) -> None:
        self.packed = torch.zeros(2 * num, dtype=torch.int32, device=device)
        self.copies = [self.packed]  # of each stage, set together
        self.token_ids, self.firsts = self.packed.view(2, num)

    def pack(self, rows: list[Row]) -> Tensor:
        """A host tensor like `packed` of the rows of the batch."""
        host = torch.full((2, len(self.firsts)), -1, dtype=torch.int32)
        token_ids = [token for row in rows for token in (-1, *row.drafts)]
        firsts: list[int] = []
        for row in rows:
            firsts += [len(firsts)] * (1 + len(row.drafts))
        host[:, : len(firsts)] = torch.tensor([token_ids, firsts], dtype=torch.int32)
        return host.flatten()

    def pack_known(self, token_ids: list[int]) -> Tensor:
        """A host tensor like `packed` of rows whose tokens are all known."""
        host = torch.full((2, len(self.firsts)), -1, dtype=torch.int32)
        host[0, : len(token_ids)] = torch.tensor(token_ids, dtype=torch.int32)
        return host.flatten()


class VerifyStep(DecodeStep):
    """The launches of a step of one bucket of rows, some of which are drafts."""

    def __init__(self, *args: Any, guesses: Guesses) -> None:
        super().__init__(*args)
        self._guesses = guesses
        self._is_alone = False

    def _embed(self) -> None:
        shape = self._shape
        self._launch(
            "embed", verify.embed_guesses_kernel, (self._rows,),
            self._in.slots, self._slots.token_ids, self._guesses.token_ids,
            self._weights.embedding, self._s.x, H=shape.hidden, BLOCK=shape.hidden_block,
            num_warps=4,
        )  # fmt: skip

    def _attention(self, index: int, layer: LayerWeights) -> None:
        self.write_kv(index)
        super()._attention(index, layer)

    def write_kv(self, index: int) -> None:
        """Write a layer's K/V of all rows, before any row attends to them."""
        shape = self._shape
        config = shape.config
        tables = self._slots.window_tables if shape.window(index) else self._slots.full_tables
        launch(
            verify.write_kv_kernel, (config.num_key_value_heads, self._rows), self._s.qkv,
            self._cache[self._cache_layers[index]], tables, self._in.slots, self._in.positions,
            self._in.num_rows, self._weights.cosines, self._weights.sines,
            TABLE_STRIDE=tables.shape[1], KV_HEADS=config.num_key_value_heads, GROUP=shape.group,
            D=config.head_dim, BLOCK=self._block_size, num_warps=1,
        )  # fmt: skip
