"""What a chunk consists of: runs of tokens of its sequences, and their tiles for attention."""

from __future__ import annotations

from itertools import accumulate
from typing import Final, NamedTuple

import torch
from torch import Tensor

TILE_TOKENS: Final = 16  # queries of an attention tile
ON_DEVICE: Final = -1  # a token id that the host does not know: the one its slot sampled last


class TokenRun(NamedTuple):
    """Neighbouring tokens of one sequence."""

    slot: int
    start: int  # position of the first
    token_ids: list[int]
    num_states: int = 1  # of the last tokens, whose states after the last layer are wanted

    @property
    def is_row(self) -> bool:
        """Whether it decodes: the token that was sampled last."""
        return self.token_ids == [ON_DEVICE]

    @property
    def positions(self) -> range:
        return range(self.start, self.start + len(self.token_ids))


class PlacedRun(NamedTuple):
    """A run and its place."""

    run: TokenRun
    row: int  # of its first token in the chunk


def placed_runs(chunks: list[TokenRun]) -> list[PlacedRun]:
    ends = accumulate(len(chunk.token_ids) for chunk in chunks)
    placed = zip(chunks, ends, strict=True)
    return [PlacedRun(chunk, end - len(chunk.token_ids)) for chunk, end in placed]


def tiles_of(placed: list[PlacedRun], tokens: int, *, is_last: bool) -> Tensor:
    """The tiles of at most `tokens` tokens, as the attention's kernels have them; in the last layer
    of those alone whose states are wanted."""
    found = []
    for run, row in placed:
        count = len(run.token_ids)
        found += [
            (run.slot, row + at, run.start + at, min(tokens, count - at))
            for at in range(count - run.num_states if is_last else 0, count, tokens)
        ]
    return torch.tensor(found, dtype=torch.int32).view(-1, 4)
