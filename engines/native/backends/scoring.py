"""The log-probabilities of known tokens, in plain torch."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from engines.prompt_logprobs import PromptLogprobs

# Rows of the output head at once: 64 rows of gpt-oss's logits take 51 MB.
MAX_ROWS: Final = 64


class Scores(NamedTuple):
    """Of some tokens, a row each."""

    logprobs: Tensor  # (rows) float32
    ranks: Tensor  # (rows) int32; 1: the likeliest
    top_ids: Tensor  # (rows, num_top) int32, best first
    top_logprobs: Tensor  # (rows, num_top) float32

    def packed(self) -> PromptLogprobs:
        """The log-probabilities in the engine's form; waits for the device."""
        return PromptLogprobs(
            self.top_ids.shape[1], *(part.cpu().contiguous().numpy().tobytes() for part in self)
        )


def score(logits: Tensor, token_ids: Tensor, num_top: int) -> Scores:
    """Score token_ids (rows) int64 by logits (rows, vocabulary) float32 of the places before."""
    totals = logits.logsumexp(1)
    chosen = logits.gather(1, token_ids[:, None])
    ranks = (logits > chosen).sum(1, dtype=torch.int32) + 1
    top = logits.topk(num_top)
    return Scores(
        chosen.squeeze(1) - totals, ranks, top.indices.int(), top.values - totals[:, None]
    )


def joined(pieces: list[Scores]) -> Scores:
    return pieces[0] if len(pieces) == 1 else Scores(*map(torch.cat, zip(*pieces, strict=True)))
