"""A step that runs on the device: its sampling, and what it gives once it is done."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engines.native.backends.base import Batch, Sampled, TokenMasks
from engines.native.backends.cuda.memory.transfer import Transfer
from engines.native.backends.cuda.sampling.draws import Draw, Draws
from engines.native.backends.cuda.sampling.outcome import Token, sampled_of
from engines.native.backends.scoring import Scores


class CudaStep:
    """A launched step; its tokens are on their way once it is sampled."""

    def __init__(
        self,
        batch: Batch,
        num_steady: int,
        draws: list[Draw],
        scores: dict[int, Scores],
        sampling: Draws,
        transfer: Transfer,
    ) -> None:
        """`num_steady`: the first rows of the batch; `scores` of prompts, by its row."""
        self._num_steady, self._steady_tokens = num_steady, [-1] * num_steady
        self._draws, self._scores, self._sampling = draws, scores, sampling
        self._transfer, self._rows = transfer, batch.rows
        self._done = transfer.done()

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Enqueue the sampling with these masks, by the row behind the steady ones."""
        self.sample({self._num_steady + row: mask for row, mask in masks.items()})

    @torch.inference_mode()
    def sample(self, masks: Mapping[int, TokenMasks]) -> None:
        self._sampling.enqueue(self._draws, masks)
        self._done = self._transfer.done()

    def collect(self) -> list[Sampled]:
        """Wait for the step; the results of each row with is_last or prompt_logprobs."""
        if self._done is not None:
            self._done.synchronize()
        tokens: dict[int, list[Token]] = {}
        for draw in self._draws:
            if draw.tokens is None:
                continue
            for row, token in zip(draw.rows, draw.drawn(), strict=True):
                if row < self._num_steady:
                    self._steady_tokens[row] = token[0]
                else:
                    tokens.setdefault(row, []).append(token)
        sampled = {i: sampled_of(of, self._rows[i].drafts) for i, of in tokens.items()}
        for i, scores in self._scores.items():
            sampled[i] = sampled.get(i, Sampled(()))._replace(prompt_logprobs=scores.packed())
        return [sampled[i] for i in sorted(sampled)]

    def steady_tokens(self) -> list[int]:
        return self._steady_tokens
