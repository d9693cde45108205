"""The draw of the next tokens from logits on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.native.backends.cuda.kernels import sampling
from engines.native.backends.cuda.kernels.launch import launch, next_power_of_2
from engines.native.backends.cuda.steps.buffers import Rows, SlotTensors

_PART = 1024  # tokens, at least, of a part of the vocabulary that one program draws from


class Sampler:
    """Rows to be sampled and their logits; the tokens go into rows.sampled and to the slots."""

    def __init__(
        self, rows: Rows, slots: SlotTensors, vocab_size: int, device: torch.device
    ) -> None:
        num, num_chunks = len(rows.slots), min(next_power_of_2(-(-vocab_size // _PART)), 128)
        self.rows, self._slots, self._num_chunks = rows, slots, num_chunks
        self.logits = torch.zeros(num, vocab_size, device=device)
        self.floors = torch.full((num,), -1e30, device=device)  # logits under it are out
        self._part_best = torch.zeros(num, num_chunks, device=device)
        self._part_token = torch.zeros(num, num_chunks, dtype=torch.int32, device=device)

    def run(self, num: int) -> None:
        """Launch the draw of the first `num` rows on the current stream."""
        rows, slots = self.rows, self._slots
        parts: tuple[Tensor, Tensor] = (self._part_best, self._part_token)
        launch(
            sampling.draw_kernel, (self._num_chunks, num), self.logits, rows.num_rows, rows.slots,
            slots.temperatures, slots.seeds, rows.generated, self.floors, *parts,
            self.logits.shape[1], CHUNKS=self._num_chunks, BLOCK=64, num_warps=2,
        )  # fmt: skip
        launch(
            sampling.pick_kernel, (num,), *parts, rows.num_rows, rows.slots, slots.token_ids,
            rows.sampled, rows.positions, rows.generated, CHUNKS=self._num_chunks, num_warps=1,
        )  # fmt: skip
