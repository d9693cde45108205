"""The draw of the next tokens from logits on the device, and what comes before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from engines.native.backends.base import MAX_LOGPROBS, TokenMask
from engines.native.backends.cuda.kernels import filters, logprobs, penalties, sampling
from engines.native.backends.cuda.kernels.launch import launch, next_power_of_2
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.fields import NUMBERS, WHOLES, SlotFields
from engines.native.backends.cuda.steps.buffers import Rows, SlotTensors

OUT: Final = -1e30  # finite, also over a small temperature: what is not a number is the model's
_PART = 1024  # tokens, at least, of a part of the vocabulary that one program draws from
_TOP_PART: Final = 2048  # tokens of a part whose likeliest are sought
_PENALTY_PART: Final = 4096
_WEIGHED: Final = 4096  # tokens of a part of a row, whose weights are summed apart
_MOST_PARTS: Final = 32
_LEVELS: Final = 16
_MOST_LEFT: Final = 4096  # logits that are sorted
_STRIDE: Final = 1 + 2 * MAX_LOGPROBS


class Sampler:
    """Rows to be sampled and their logits; the tokens go into rows.sampled and to the slots.

    Each method launches one stage of a step of the first `num` rows on the current stream. Rows
    that do not ask for it cost a stage nothing.
    """

    def __init__(self, rows: Rows, slots: SlotTensors, fields: SlotFields, vocab_size: int) -> None:
        num, num_chunks = len(rows.slots), min(next_power_of_2(-(-vocab_size // _PART)), 128)
        self.rows, self._slots, self._fields, self._num_chunks = rows, slots, fields, num_chunks
        device = rows.slots.device

        def make(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.logits = make(num, vocab_size)
        self.floors = torch.full((num,), OUT, device=device)  # logits under it are out
        self._parts = make(num, num_chunks), make(num, num_chunks, dtype=torch.int32)
        self._num_parts = min(next_power_of_2(-(-vocab_size // _WEIGHED)), _MOST_PARTS)
        self._extents = make(num, self._num_parts), make(num, self._num_parts)
        self._state, self._levels = make(num, filters.STATES), make(num, _LEVELS)
        self._weights = make(num, self._num_parts, _LEVELS)
        self._left, self._num_left = make(num, _MOST_LEFT), make(num, dtype=torch.int32)
        # Of a row whose logits are changed, the address of a copy from before; 0: there is none.
        self.copies = make(num, dtype=torch.int64)
        self._masks = make(num, dtype=torch.int64)  # the address of each row's; 0: it has none
        self._num_top_parts = parts = -(-vocab_size // _TOP_PART)
        self._tops = (
            make(num, parts), make(num, parts),
            make(num, parts, MAX_LOGPROBS, dtype=torch.int32), make(num, parts, MAX_LOGPROBS),
        )  # fmt: skip
        self.told = make(num, _STRIDE, dtype=torch.int32)  # outcome.logprobs_of reads it

    @property
    def _vocab_size(self) -> int:
        return self.logits.shape[1]

    def run(self, num: int) -> None:
        """The draw of each row from what is left of its logits."""
        rows, slots = self.rows, self._slots
        launch(
            sampling.draw_kernel, (self._num_chunks, num), self.logits, rows.num_rows, rows.slots,
            slots.temperatures, slots.seeds, rows.generated, self.floors, *self._parts,
            self._vocab_size, CHUNKS=self._num_chunks, BLOCK=64, num_warps=2,
        )  # fmt: skip
        launch(
            sampling.pick_kernel, (num,), *self._parts, rows.num_rows, rows.slots, slots.token_ids,
            rows.sampled, rows.positions, rows.generated, CHUNKS=self._num_chunks, num_warps=1,
        )  # fmt: skip

    def set_masks(self, masks: Mapping[int, TokenMask], num: int, transfer: Transfer) -> Tensor:
        """Bring the masks of these of the first `num` rows, for `exclude`; they are what is
        returned, which may go once that is enqueued."""
        words = transfer.to_device(torch.from_numpy(np.stack([*masks.values()])))
        addresses, size = [0] * num, words.stride(0) * words.element_size()
        for index, row in enumerate(masks):
            addresses[row] = words.data_ptr() + index * size
        self._masks[:num] = transfer.upload(addresses, torch.int64)
        return words

    def exclude(self, num: int) -> None:
        """What the rows' masks forbid is out."""
        launch(
            penalties.mask_kernel, (-(-self._vocab_size // _PENALTY_PART), num), self.logits,
            self.rows.num_rows, self._masks, self._vocab_size, OUT=OUT, BLOCK=_PENALTY_PART,
            num_warps=8,
        )  # fmt: skip

    def bias(self, num: int) -> None:
        launch(
            penalties.bias_kernel, (num,), self.logits, self.rows.num_rows, self.rows.slots,
            self._fields.wholes, self._vocab_size, WHOLES=WHOLES, BLOCK=128, num_warps=4,
        )  # fmt: skip

    def penalise(self, num: int) -> None:
        # As torch computes it, without fused multiply-adds.
        launch(
            penalties.penalty_kernel, (-(-self._vocab_size // _PENALTY_PART), num), self.logits,
            self.rows.num_rows, self.rows.slots, self._fields.numbers, self._fields.wholes,
            self._vocab_size, NUMBERS=NUMBERS, WHOLES=WHOLES, BLOCK=_PENALTY_PART, num_warps=8,
            enable_fp_fusion=False,
        )  # fmt: skip

    def count(self, num: int) -> None:
        """Count what was drawn, for the penalties of the next step."""
        launch(
            penalties.count_kernel, (num,), self.rows.num_rows, self.rows.slots,
            self._fields.wholes, self.rows.sampled, WHOLES=WHOLES, num_warps=1,
        )  # fmt: skip

    def find_top_k(self, num: int) -> None:
        """The floors of top_k: before find_floors, where a row has top_k."""
        self._find(num, is_count=True)

    def find_floors(self, num: int) -> None:
        """The floors of min_p and top_p, which leave those of top_k as they are or raise them."""
        self._find(num, is_count=False)

    def _find(self, num: int, *, is_count: bool) -> None:
        rows, parts, state = self.rows, (self._num_parts, num), self._state
        size: dict[str, Any] = {"PARTS": self._num_parts}
        search: dict[str, Any] = {"STATES": filters.STATES}
        launch(
            filters.extent_kernel, parts, self.logits, rows.num_rows, *self._extents,
            self._vocab_size, **size, BLOCK=2048, num_warps=4,
        )  # fmt: skip
        launch(
            filters.start_kernel, (num,), *self._extents, rows.num_rows, rows.slots,
            self._slots.temperatures, self._fields.numbers, self._fields.wholes, self.floors, state,
            self._levels, self._num_left, self._vocab_size, NUMBERS=NUMBERS, WHOLES=WHOLES,
            IS_COUNT=is_count, **size, LEVELS=_LEVELS, **search, num_warps=1,
        )  # fmt: skip
        for _ in range(2):
            launch(
                filters.weigh_kernel, parts, self.logits, rows.num_rows, state, self._levels,
                self._weights, self._vocab_size, **size, BLOCK=512, LEVELS=_LEVELS, **search,
                num_warps=4,
            )  # fmt: skip
            launch(
                filters.narrow_kernel, (num,), rows.num_rows, state, self._levels, self._weights,
                **size, LEVELS=_LEVELS, **search, num_warps=1,
            )  # fmt: skip
        left = self._left, self._num_left
        launch(
            filters.gather_kernel, parts, self.logits, rows.num_rows, state, *left,
            self._vocab_size, **size, BLOCK=1024, MOST=_MOST_LEFT, **search, num_warps=4,
        )  # fmt: skip
        launch(
            filters.settle_kernel, (num,), self.logits, rows.num_rows, state, *left, self.floors,
            self._vocab_size, BLOCK=4096, MOST=_MOST_LEFT, **search, num_warps=8,
        )  # fmt: skip

    def find_tops(self, num: int) -> None:
        """The likeliest tokens by the model's own logits; before anything changes them."""
        launch(
            logprobs.top_kernel, (self._num_top_parts, num), self.logits, self.rows.num_rows,
            self.rows.slots, self._fields.wholes, self.copies, *self._tops, self._vocab_size,
            PARTS=self._num_top_parts, WHOLES=WHOLES, MOST=MAX_LOGPROBS, BLOCK=_TOP_PART,
            num_warps=4,
        )  # fmt: skip

    def tell(self, num: int) -> None:
        """The log-probabilities of what was drawn and of the likeliest, into `told`."""
        launch(
            logprobs.told_kernel, (num,), self.logits, self.rows.num_rows, self.rows.slots,
            self._fields.wholes, self.copies, self.rows.sampled, *self._tops, self.told,
            self.told.view(torch.float32), self._vocab_size, PARTS=self._num_top_parts,
            ALL=next_power_of_2(self._num_top_parts), WHOLES=WHOLES, MOST=MAX_LOGPROBS,
            WIDTH=next_power_of_2(MAX_LOGPROBS), STRIDE=_STRIDE, num_warps=4,
        )  # fmt: skip
