"""A step that runs on the device: its sampling, its drafts, and what it gives once it is done."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engines.native.backends.base import Batch, Row, Sampled, TokenMasks
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.draws import Draw, Draws
from engines.native.backends.cuda.sampling.outcome import Token, sampled_of
from engines.native.backends.cuda.steps.eagle import DeviceHead
from engines.native.backends.scoring import Scores


class CudaStep:
    """A launched step; its tokens are on their way once it is sampled."""

    def __init__(
        self,
        batch: Batch,
        draws: list[Draw],
        scores: dict[int, Scores],
        sampling: Draws,
        transfer: Transfer,
        head: DeviceHead | None,
    ) -> None:
        """`scores` of prompts, by the row of the batch."""
        self._draws, self._scores, self._sampling = draws, scores, sampling
        self._transfer, self._head = transfer, head
        self._rows = batch.rows
        self._wanting = [i for i, row in enumerate(batch.rows) if row.is_last and row.num_wanted]
        self._proposed: Tensor | None = None  # (drafts, rows that want some), on the host
        self._done = transfer.done()

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the sampling with these masks, by the row of the batch."""
        self.sample(masks)

    @torch.inference_mode()
    def sample(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the draws."""
        self._sampling.enqueue(self._draws, masks)
        if self._wanting:
            self._proposed = self._propose([self._rows[i] for i in self._wanting])
        self._done = self._transfer.done()

    def _propose(self, rows: list[Row]) -> Tensor:
        """Enqueue drafts: (drafts, rows) on the host, once they are done."""
        assert self._head is not None
        slots, wanted = [row.slot for row in rows], [row.num_wanted for row in rows]
        return self._transfer.to_host(self._head.propose(slots, wanted, self._transfer.upload))

    def collect(self) -> list[Sampled]:
        """Wait for the step; the results of each row with is_last or prompt_logprobs."""
        if self._done is not None:
            self._done.synchronize()
        tokens: dict[int, list[Token]] = {}
        for draw in self._draws:
            if draw.tokens is None:
                continue
            for place, (row, token) in enumerate(zip(draw.rows, draw.tokens.tolist(), strict=True)):
                tokens.setdefault(row, []).append((token, draw.logprobs.get(place)))
        guesses = self._guesses()
        sampled = {
            i: sampled_of(of, self._rows[i].drafts, guesses.get(i, ())) for i, of in tokens.items()
        }
        for i, scores in self._scores.items():
            sampled[i] = sampled.get(i, Sampled(()))._replace(prompt_logprobs=scores.packed())
        return [sampled[i] for i in sorted(sampled)]

    def _guesses(self) -> dict[int, tuple[int, ...]]:
        """The draft tokens of each row that asked for some."""
        if self._proposed is None:
            return {}
        return {
            i: tuple(column[: self._rows[i].num_wanted])
            for i, column in zip(self._wanting, self._proposed.t().tolist(), strict=True)
        }
